"""Which addressees submitters may name: what the server's configuration allows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from tidemill.config.addressee import Channel, Target, parse_target
from tidemill.config.notify import Mail, Notify
from tidemill.model.notification import SUBSCRIPTIONS_MAX, Subscription


class Addressees:
    """The rules. `messages`: a transport brings messages to submitters."""

    def __init__(
        self, mail: Mail | None = None, notify: Notify | None = None, *, messages: bool = False
    ) -> None:
        self._mail, self._notify, self._messages = mail or Mail(), notify or Notify(), messages

    def refuse(self, wanted: Sequence[Subscription]) -> tuple[str, str] | None:
        """Why these may not be notified, and what would be legal; None = they may."""
        if len(wanted) > SUBSCRIPTIONS_MAX:
            return f"{len(wanted)} addressees of one campaign", f"at most {SUBSCRIPTIONS_MAX}"
        for each in wanted:
            hint = self._hint(parse_target(each.to))
            if hint is not None:
                return f"this server may not notify `{each.to}`", hint
        return None

    def _hint(self, target: Target) -> str | None:
        match target.channel:
            case Channel.MAIL:
                if not self._mail.server:
                    return "it sends no mail: `[mail]` of its server.toml has no `server`"
                return self._refusal("mail", target.where)
            case Channel.HOOK if target.is_url:
                return self._refusal("https", urlsplit(target.where).hostname or "")
            case Channel.HOOK:
                return self._refusal("hook", target.where)
            case _ if target.where:
                return "submitters get messages of their own campaigns: write `message`"
            case _:
                missing = "its server.toml has no `[amqp]`, which is of the extension `messages`"
                return None if self._messages else missing

    def _refusal(self, kind: str, where: str) -> str | None:
        if self._notify.allows(kind, where):
            return None
        known = [each for each in self._notify.allowed if each.startswith(f"{kind}:")]
        listed = ", ".join(f"`{each}`" for each in known) or "none"
        return f"`notify.allowed` has of `{kind}`: {listed}; ask the server's operator"
