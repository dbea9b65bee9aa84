"""What the address of a page says, and addresses of pages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

TEXT_MAX = 200
NUMBER_MAX = 2**62
SIZES = (25, 50, 100, 200)


class AddressQuery:
    """The query of a page's address. Values are bounded texts; what is empty is not there."""

    def __init__(self, path: str, values: Mapping[str, str]) -> None:
        self.path = path
        self.values = {
            key: value.strip()[:TEXT_MAX].replace("\0", "") for key, value in values.items() if value.strip()
        }

    def text(self, key: str) -> str | None:
        """A value, None = not given."""
        return self.values.get(key)

    def number(self, key: str) -> int | None:
        """A whole number; None = not given, or none."""
        value = self.values.get(key, "")
        return int(value) if value.isdecimal() and value.isascii() and len(value) < 19 else None

    def choice(self, key: str, legal: tuple[str, ...]) -> str:
        """The value of a key, one of these words; the first, if another is given or none."""
        value = self.values.get(key, "")
        return value if value in legal else legal[0]

    def size(self, default: int = 50) -> int:
        """Rows of a page."""
        found = self.number("size")
        return found if found in SIZES else default

    def link(self, **changes: str | int | None) -> str:
        """This page's address with other values; None takes one away. A change starts at the first page."""
        values = {
            key: value for key, value in self.values.items() if key not in ("after", "page", "said", "n", "m")
        }
        for key, value in changes.items():
            values.pop(key, None)
            if value is not None and value != "":
                values[key] = str(value)
        return self.path + ("?" + urlencode(values) if values else "")


def to(*parts: str | int) -> str:
    """The address of a page below `/`; every part is quoted."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


def campaign_page(owner: str, name: str) -> str:
    """The address of a campaign's page, which means the same for everyone who may see it."""
    return with_values(to("campaigns", name), owner=owner)


def with_values(path: str, **values: str | int | None) -> str:
    """An address with a query."""
    given = {key: value for key, value in values.items() if value not in (None, "")}
    return path + ("?" + urlencode(given) if given else "")


def own_path(text: str | None) -> str:
    """Where to go on after a form: a path of this server, else the first page. Nothing here leads to another host."""
    if not text or len(text) > 2_000 or not text.startswith("/") or text.startswith(("//", "/\\")):
        return "/"
    if any(ord(each) < 33 or each == "\\" for each in text):
        return "/"
    return text


def said(values: Mapping[str, str]) -> str | None:
    """What an action has done, from the address that it led to. Fixed words and numbers only."""
    word, changed, unchanged = values.get("said"), values.get("n", ""), values.get("m", "")
    word, dash, _ = (word or "").partition("-events")
    done = {"cancel": "canceled", "retry": "will run again", "accept": "accepted"}.get(word)
    if done is None or not (changed.isdecimal() and unchanged.isdecimal()):
        return None
    number = f"{int(changed[:18]):,} {'event' if dash else 'job'}{'' if changed == '1' else 's'}"
    rest = f"; {int(unchanged[:18]):,} unchanged" if unchanged.strip("0") else ""
    return f"{number} {done}{rest}"
