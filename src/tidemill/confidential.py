"""Cuts secrets out of texts for logs and bundles: registered values, and whatever looks like a credential.

Knows no file, no log and no configuration. It cuts by form, not by product: all values in queries of URLs, each value
behind a name such as `PGPASSWORD` or `apiKey`, however the text writes it (shell, TOML, JSON, YAML, Python, a command
line, a header), and what nothing else looks like (private keys, tokens with a known beginning, hook URLs). Data are
cut value by value, before they are encoded: in the encoded text a quote within a value has another form.
Texts come from others: matching takes time linear in their length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

CUT = "[cut]"
HIDDEN_MIN = 8  #: characters; a shorter secret would also cut ordinary words
HIDDEN_MAX = 10_000
NAME_MAX = 64  #: characters of a name before the word that shows what it is
VALUE_MAX = 4096  #: characters of a quoted value whose end is looked for
CACHED_MAX = (
    64  #: characters of a value whose result is kept: names of sites, nodes and states come again and again
)
_hidden: list[str] = []  #: the longest first: one may stand within another
_hidden_numbers: list[str] = []


def hide(secret: str) -> None:
    """Cut this value out of everything that is logged or bundled from now on, also as JSON writes it."""
    for form in (secret, msgspec.json.encode(secret).decode()[1:-1], json.dumps(secret)[1:-1]):
        if len(form) >= HIDDEN_MIN and len(_hidden) < HIDDEN_MAX and form not in _hidden:
            _hidden[:] = sorted([*_hidden, form], key=len, reverse=True)
            _hidden_numbers[:] = [each for each in _hidden if _IS_NUMBER.match(each)]
            _cut_short.cache_clear()


def hidden() -> frozenset[str]:
    """The values that were registered with `hide`."""
    return frozenset(_hidden)


def cut(text: str) -> str:
    """The text without registered secrets and without what looks like a credential.

    Cut text reads `[cut]`; names, paths, hosts, numbers of jobs and digests stay. For data see `cut_data`, for a text
    that may be JSON see `cut_lines`.
    """
    for secret in _hidden:
        if secret in text:
            text = text.replace(secret, CUT)
    lower = _lower(text)
    for rule in _RULES:
        for trigger in rule.triggers:
            if trigger in lower:
                changed = rule.pattern.sub(_replacement, text)
                if changed != text:
                    text, lower = changed, _lower(changed)
                break
    for trigger in _TRIGGERS:
        if trigger in lower:
            return _cut_named(text, lower)
    return text


def cut_data(value: Any, strength: str = "") -> Any:
    """The same value with every text in it cut, also those that are keys, and what stands behind the name of a secret.

    Below the name of a password or another strong one, all texts are cut: `{"password": {"value": "..."}}`. What
    JSON has no type for becomes one that it has, if need be a text. `strength` says what the name of the value is.
    """
    kind = type(value)
    if kind is str:
        if strength and not _harmless(value, strength):
            return CUT
        return _cut_short(value) if len(value) <= CACHED_MAX else cut(value)
    if kind is int or kind is float:
        is_secret = strength == "pass" and len(str(value)) >= 4
        return CUT if is_secret or any(each in str(value) for each in _hidden_numbers) else value
    if value is None or kind is bool:
        return value
    if kind is dict:
        return _cut_fields(value, strength)
    if kind is list or kind is tuple:
        return _cut_words([cut_data(each, strength) for each in value])
    return cut_data(msgspec.json.decode(msgspec.json.encode(value, enc_hook=str)), strength)


def _cut_words(words: list[Any]) -> list[Any]:
    """The words of a command or a header, where one says what the next is: `["-u", "ada:[cut]"]`."""
    is_spoken = all(type(each) is str for each in words)
    if not is_spoken or not any(each[:1] == "-" or _HEADERS.match(each) for each in words):
        return words
    written = json.dumps(words)
    clean = cut(written)
    if clean == written:
        return words
    try:
        found: list[Any] = json.loads(clean)
    except ValueError:
        return [CUT] * len(words)
    return found


def _cut_fields(fields: dict[Any, Any], above: str) -> dict[Any, Any]:
    """Two keys that are cut stay two keys."""
    inherited = above if above in ("pass", "strong") else ""
    clean: dict[Any, Any] = {}
    for name, value in fields.items():
        is_text = isinstance(name, str)
        key = cut_data(name) if is_text else name
        if key in clean:
            key = f"{key}{len(clean)}"
        clean[key] = cut_data(value, (_strength(name) if is_text else "") or inherited)
    return clean


@lru_cache(maxsize=4096)
def _cut_short(text: str) -> str:
    return cut(text)


def cut_lines(text: str) -> str:
    """A text that may be JSON, or have lines that are: these are cut value by value and stay JSON, the rest is cut
    as text."""
    if text.lstrip()[:1] in _JSON_BEGINS and (whole := _cut_json(text)) is not None:
        return whole
    pieces: list[str] = []
    others: list[str] = []  #: lines that cannot be read as JSON: a private key has several
    for line in text.splitlines(keepends=True):
        clean = _cut_json(line) if line[:1] in _JSON_BEGINS else None
        if clean is None:
            others.append(line)
        else:
            pieces += (cut("".join(others)), clean)
            others.clear()
    return "".join((*pieces, cut("".join(others))))


_JSON_BEGINS = frozenset("{[")


def _cut_json(text: str) -> str | None:
    """The text, which is JSON, with its values cut, or None if it is something else or has a key twice: a value that
    decoding loses would stay."""
    try:
        data = json.loads(text, object_pairs_hook=_object)
        clean = cut_data(data)
        if clean == data:
            return text
        indent = 1 if "\n" in text.strip() else None
        separators = (", " if indent is None else ",", ": ") if '": ' in text else (",", ":")
        written = json.dumps(clean, indent=indent, separators=separators, ensure_ascii=text.isascii())
    except (ValueError, RecursionError):
        return None
    return written + text[len(text.rstrip()) :]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a key stands twice")
    return result


def cut_assignments(line: str) -> str:
    """A line of shell without the values of its assignments: `export A=b; C=d run` becomes
    `export A=[cut]; C=[cut] run`."""
    return cut(_SETENV.sub(r"\g<1>" + CUT, _ASSIGNMENT.sub(r"\g<1>" + CUT, line)))


_ASSIGNMENT = re.compile(
    r"""(?<![\w-])([A-Za-z_]\w{0,127}\+?=)(?:"(?:[^"\\]|\\.)*"|'[^']*'|\\.|[^\s;&|"'\\])++""", re.DOTALL
)
_SETENV = re.compile(r"(?<![\w-])(setenv[ \t]+\w{1,128}[ \t]+)[^\n;]+")
_ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _lower(text: str) -> str:
    """The text in small letters, of the same length: `str.lower` lengthens some letters."""
    return text.lower() if text.isascii() else text.translate(_ASCII_LOWER)


# ---- forms that need no name


class _Rule(NamedTuple):
    """What the pattern's groups `keep`, `keep2` do not hold is cut. Only texts with one of the triggers, which are in
    small letters, are searched: looking for a word takes 40 ns in a line of a log, and most lines have none."""

    triggers: tuple[str, ...]
    pattern: re.Pattern[str]


def _rule(triggers: str, pattern: str, flags: int = re.IGNORECASE) -> _Rule:
    return _Rule(tuple(triggers.split()), re.compile(pattern, flags))


def _replacement(match: re.Match[str]) -> str:
    groups = match.groupdict()
    if "url" in groups:
        return "://" + _cut_url(match["url"])
    return (groups.get("keep") or "") + CUT + (groups.get("keep2") or "")


_URL = r"://(?P<url>(?:[^\s\"'<>`\\]|\\u0026)+)"
# of tokens, as their makers document them: GitHub, GitLab, Slack, AWS, Stripe, OpenAI, Vault, Google, Grafana, ...
_PREFIXES = (
    r"hf_|gh[pousr]_|github_pat_|gl[a-z]{2,5}-|xox[a-z]{1,2}-|xapp-|akia|asia|[srp]k-|[srp]k_(?:live|test)_|pypi-|npm_|"
    r"hv[sbr]\.|ya29\.|1//|aiza|glsa_|glc_|do[opr]_v1_|whsec_|sg\.|shp[a-z]{2}_|dckr_pat_|lin_api_|age-secret-key-|eyj|md[abc][a-z0-9]"
)
_RULES = (
    # RFC 7468; a key that was cut short ends with its base64
    _rule(
        "-----begin",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:.{0,16384}?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|[A-Za-z0-9+/=:,\s\\-]*+)",
        re.DOTALL,
    ),
    _rule("://", _URL, re.ASCII),
    _rule("? &", r"(?P<keep>(?<=[^\s?&])[?&][\w.~%-]{1,64}=)[^\s&\"'#\\<>]+"),
    # paths that are credentials: of `tidemill web`, and of web hooks
    _rule("/enter/", r"(?P<keep>/enter/)[\w~-]{16,}+"),
    _rule("hook /services/", r"(?P<keep>/(?:services|[\w-]{0,20}hook\w{0,8})/)[\w@./:~-]{16,}+"),
    _rule(
        "akia asia", r"(?P<keep>(?<![a-z0-9])a[ks]ia[a-z0-9]{16}[\s:,\"']{1,4})[\w/+]{30,}+"
    ),  # its secret often follows
    # tokens that are known by their first letters; a digit must follow, or it may be a word
    _rule(
        "hf_ ghp_ gho_ ghu_ ghs_ ghr_ github_ glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glimt- glagent- xox xapp-"
        " akia asia sk- pk- rk- k_live k_test pypi- npm_ hvs. hvb. hvr. ya29. 1// aiza glsa_ glc_ dop_v1 doo_v1 dor_v1"
        " whsec_ sg. shpat_ shpss_ shpca_ dckr_ lin_api age-secret eyj mda mdb mdc",
        rf"(?<![A-Za-z0-9_])(?:{_PREFIXES})(?=[^\s\d]{{0,80}}\d)[\w.~+/=-]{{16,}}+",
    ),
    # schemes of RFC 9110 11.1 and of SASL without the name of their header
    _rule(
        "bearer basic token negotiate",
        r"(?P<keep>(?<![\w-])(?i:bearer|basic|negotiate|token)(?:\s+|%20))(?=[a-z~+/.-]{0,80}[\d=A-Z])[\w.~+/=-]{8,}+(?<![.])",
        re.ASCII,
    ),
    _rule("auth ", r"(?P<keep>(?<!\w)auth (?:plain|login|xoauth2|cram-md5) )[\w+/=]{4,}+"),
    # words of command lines that follow others; a quote may open before the name or before the value, or never close
    _rule(
        "-u --user --proxy-user",
        r"(?P<keep>(?<![\w-])(?:-u|--user|--proxy-user)(?:[ =]{0,2}|[\"'], ?)"
        r"(?:(?P<quote>\\{0,8}[\"'])[^\s:\"'/\\]{1,64}:|[^\s:\"'/\\]{1,64}:(?P<inner>\\{0,8}[\"'])?))"
        r"(?:(?(quote)(?:(?!(?P=quote))[^\n])+|(?!))|(?(inner)(?:(?!(?P=inner))[^\n])+|(?!))|[^\s\"'\\]+)",
    ),
    _rule(
        "mysql mariadb sshpass login",
        r"(?P<keep>(?<!\w)(?:mysql\w{0,12}|mariadb|sshpass|login)\b[^\n|;]{0,200}?[\s\"']-p"
        r"(?:[ \t]?(?P<quote>\\{0,8}[\"'])|[\s\"',\\]{0,8}))(?(quote)(?:(?!(?P=quote))[^\n]){3,}|[^\s\"',\\]{3,})",
    ),
    # user/password@database
    _rule(
        "sqlplus oracle:thin",
        r"(?P<keep>(?<!\w)(?:sqlplus\b[^\n|;]{0,200}?[\s\"']|jdbc:oracle:thin:)[\w.$#-]{1,64}/)[^\s@/]{1,128}(?=@)",
    ),
    _rule("ldap", r"(?P<keep>(?<!\w)ldap\w{1,20}\b[^\n|;]{0,200}?[\s\"']-w[\s\"',]{0,4})[^\s\"',]{3,}"),
    _rule("password for", r"(?P<keep>password for [^\s:]{1,128}: ?)\S{4,}"),
    _rule("login", r"(?P<keep>(?<!\w)login[ \t]+(?:--relogin[ \t]+)?)(?=[a-z_.-]{0,80}\d)[\w.-]{24,}+"),
    _rule("<<<", r"(?P<keep><<<[ \t]*)(?:\"[^\"\n]*+\"|'[^'\n]*+'|[^\s\"']+)"),
    _rule(
        "kinit passwd sudo login stdin",
        r"(?P<keep>(?<!\w)(?:echo|printf)[ \t])[^|\n]{1,500}+"
        r"(?P<keep2>\|[ \t]*(?:kinit|sudo|passwd|chpasswd|[^|\n]{0,100}(?:login|stdin)))",
    ),
    _rule("add_user change_password", r"(?P<keep>(?:add_user|change_password)[ \t]+[\w.-]{1,64}[ \t]+)[^\s\"']+"),
    # host:port:database:user:password, https://www.postgresql.org/docs/17/libpq-pgpass.html
    _rule(":", r"(?P<keep>:(?:\d{3,5}|\*):[\w*-]{1,64}+:[\w*-]{1,64}+:)[^\s\"'\\]{6,}", re.ASCII),
)  # fmt: skip

# userinfo (RFC 3986 3.2.1), also with a password in which `/`, `?` or `#` should have been escaped
_USERINFO = re.compile(r"[^/@?#]*+@|[^/@:?#]*+:(?!\d{1,5}(?:[/?#,]|$))[^@]{0,256}@")
_HOOK_HOST = re.compile(r"(?:^|[.@])(?:hooks?|[\w-]*webhook)\.|\.logic\.azure\.", re.IGNORECASE)
_LONG_SEGMENT = re.compile(
    r"(?<=/)(?=[\w-]{32})(?=[a-z0-9_-]*[A-Z])(?=[A-Z0-9_-]*[a-z])(?=[A-Za-z_-]*\d)"
    r"[A-Za-z0-9]+(?:[_-]+[A-Za-z0-9]+){0,3}(?![^/])"
)
"""A part of a path that is random, such as that of a link to a reset or a share; digests have small letters only."""
_BOT = re.compile(r"(/bot)\d{5,12}:[\w-]+")


def _cut_url(rest: str) -> str:
    """What follows `://`, without the password of its userinfo, the values of its query and fragment, and the path of
    a hook."""
    user = ""
    if (match := _USERINFO.match(rest)) is not None:
        user, rest = _cut_userinfo(match[0][:-1]) + "@", rest[match.end() :]
    front, hash_, fragment = rest.partition("#")
    front, mark, query = front.partition("?")
    host, slash, path = front.partition("/")
    if path and _HOOK_HOST.search(host) is not None:
        first, between, tail = path.partition("/")
        path = f"{first}/{CUT}" if between and tail else CUT
    path = _LONG_SEGMENT.sub(CUT, _BOT.sub(r"\g<1>" + CUT, slash + path))
    end = (mark + _cut_query(query) if mark else "") + (
        hash_ + (_cut_query(fragment) if "=" in fragment else fragment) if hash_ else ""
    )
    return f"{user}{host}{path}{end}"


def _cut_userinfo(userinfo: str) -> str:
    name, colon, password = userinfo.partition(":")
    name = CUT if len(name) >= 16 else name  # services take a token in place of a user
    return name + (f":{CUT}" if colon and password else colon)


def _cut_query(query: str) -> str:
    """Names stay: they say which request it was."""
    pieces = re.split(r"(&|;|\\u0026)", query)
    for at in range(0, len(pieces), 2):
        name, equals, value = pieces[at].partition("=")
        if value or (name and not equals):
            pieces[at] = f"{name}={CUT}" if equals else CUT
    return "".join(pieces)


# ---- values behind a name

_WORDS = re.compile(
    r"pass|pwd|(?<![a-z])pw(?![a-z])|secret|token|key|(?<![a-z])sig|auth|cred|cookie|macaroon|bearer|jwt"
    r"|(?<![a-z])otp|(?<![a-z])code(?![a-z])|sess|(?<![a-z])sid(?![a-z])|(?<![a-z])pat(?![a-z])|pw(?![a-z])"
)
_TRIGGERS = (
    "pass", "pwd", "pw", "secret", "token", "key", "sig", "auth", "cred", "cookie", "macaroon", "bearer", "jwt", "otp",
    "code", "sess", "sid", "_pat",
)  # fmt: skip
_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-.")
_NAME_REST = re.compile(r"[\w.-]{0,64}+", re.ASCII)
_PARTS = re.compile(r"[._-]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_PASS = re.compile(
    r"pass(?:word|wd|phrase|code|wort)|^(?:pass|pwd)$|pwd$|pw$|(?<!by)(?<!com)(?<!sur)(?<!ver)(?<!der)pass$"
)
_STRONG = re.compile(
    r"secret(?!ar)|macaroon|cookies?$|credentials?$|^creds?$|^bearer$|^jwt$|^otp$|tokens?$|^o?authz?$|^authorization$|"
    r"signatures?$|(?:api|access|auth|priv|private|account|shared|routing|signing|master)keys?$"
)
_WEAK = frozenset({"key", "keys", "sig"})
_LONG = frozenset({"code", "session", "sessionid", "sid", "pat"})
"""Names of a secret only if the value is long: an exit code has the same name."""
_ABOUT = frozenset(
    {
        "file", "files", "path", "paths", "dir", "dirs", "name", "names", "type", "types", "kind", "kinds", "count",
        "counts", "total", "bytes", "size", "s", "ms", "us", "max", "min", "length", "at", "url", "uri", "host", "port",
        "timeout", "alg", "algorithm", "method", "methods", "mode", "expires", "expiry", "lifetime", "age", "ttl",
        "required", "enabled", "status", "error", "errors", "policy", "issuer", "issuers", "audience", "environment",
        "stored", "ops", "seconds", "number", "by", "prefix", "version", "source", "hash",
    }
)  # fmt: skip
"""Last words of names whose values are about a secret: `secret_file`, `tokens_total`."""
_HEADERS = re.compile(r"^(?:proxy-)?authorization$|^(?:set-)?cookie2?$|^x-[\w-]+$", re.IGNORECASE)


@lru_cache(maxsize=4096)
def _strength(name: str) -> str:
    """What a name says of its value: `pass` (a password), `strong`, `weak` or `long` (only some values), or nothing."""
    parts = [each.lower() for each in _PARTS.split(name.strip("-._")) if each]
    if not parts or (len(parts) > 1 and parts[-1] in _ABOUT):
        return ""
    if any(_PASS.search(each) for each in parts):
        return "pass"
    if any(_STRONG.search(each) for each in parts):
        return "strong"
    if not _WEAK.isdisjoint(parts):
        return "weak" if len(parts) == 1 else "strong"
    is_long = not _LONG.isdisjoint(parts) if parts[-1] != "code" else len(parts) == 1
    return "long" if is_long or parts[-1].endswith(("sessid", "sessionid")) else ""


_SEPARATOR = re.compile(
    r"(?P<quote>\\{0,8}[\"'`]?)"
    r"(?:(?P<sign>[ \t]{0,8}(?:=>|:=|[=:])[ \t]{0,8})|(?P<comma>[ \t]?,[ \t]?)|(?P<space>[ \t]{1,16}))"
)
_QUOTED = re.compile(
    r"b?(?:(?P<triple>\"\"\"|''')(?P<lines>(?s:.){0,4096}?)(?P=triple)"
    r"|\"(?P<double>(?:[^\"\\\n]|\\.){0,4096}+)(?:\"|$)|'(?P<single>(?:[^'\\\n]|\\.){0,4096}+)(?:'|$)"
    r"|(?P<inner>\\{1,8}[\"'])(?P<nested>[^\n]{0,4096}?)(?:(?<!\\)(?P=inner)|$))",
    re.MULTILINE,
)
"""A value in quotes, also in those that another text escapes."""
_LIST_BEGINS = re.compile(r"\[[ \t]*(\\{0,8}[\"'])")
_BARE = re.compile(
    r"(?:[^\s\"'`,;&|<>()\[\]{}\\]|,(?![\s\"']|[\w.-]{1,64}[=:])|[)\]}](?=[^\s,;)\]}\"'\\]))++", re.ASCII
)
_BLOCK = re.compile(r"[|>][+-]?[ \t]*\n[ \t]+(?P<block>[^\n]+)")  #: YAML 1.2.2 8.1
_HEADER_VALUE = re.compile(r"(?:(?<=[a-z])=\"[^\"\n,:}\]]+\"|\\[^n]|[^\n\"'\\])++")
_STAYS = frozenset(
    {
        "true", "false", "none", "null", "yes", "no", "on", "off", "missing", "wrong", "invalid", "expired", "unknown",
        "required", "optional", "discover", "default", "empty", "unset", "with", "from", "that", "this", "into", "file",
    }
)  # fmt: skip
_IS_PATH = re.compile(
    r"(?:~|\.{1,2})/|/(?:etc|home|run|var|tmp|usr|opt|srv|root|dev|proc|cvmfs|scratch|work|dss|lustre|gpfs|project|data|afs|eos|pnfs)"
    r"(?:/|$)|[\w./~-]{1,200}\.(?:pem|key|crt|toml|json|secret|token|password|txt|conf|py|sh)$",
    re.ASCII,
)
_IS_REFERENCE = re.compile(r"\$[({A-Za-z_]|%[({]?[a-z]|\{\{|<[\w -]+>$|\*{3,}$|\[cut|[a-z0-9]{1,8}:$")
_IS_NUMBER = re.compile(r"[+-]?[\d.,]+$")
_IS_IDENTIFIER = re.compile(r"[a-z][a-z_.-]{0,63}$")
_SPACED_MIN = {"pass": 8, "strong": 16, "weak": 20, "long": 20}
"""Characters of a value that only a space sets apart from its name."""
_IS_DIGEST = re.compile(r"(?:sha\d{1,3}|md5|adler32|blake\w{1,4})[:=]", re.IGNORECASE)


def _cut_named(text: str, lower: str) -> str:
    """Without the values behind names such as `db_password`."""
    pieces: list[str] = []
    kept = 0
    for start, end in _values(text, lower):
        pieces += (text[kept:start], CUT)
        kept = end
    return "".join((*pieces, text[kept:])) if pieces else text


def _values(text: str, lower: str) -> Iterator[tuple[int, int]]:
    """Where values stand that are secrets, in order and apart."""
    after = 0  #: nothing is read again from here back
    for word in _WORDS.finditer(lower):
        start, end = word.span()
        if start < after:
            continue
        lowest = max(after, start - NAME_MAX)
        while start > lowest and lower[start - 1] in _NAME_LETTERS:
            start -= 1
        rest = _NAME_REST.match(text, end)
        end = rest.end() if rest is not None else end
        after = end
        name = text[start:end]
        strength = _strength(name)
        if not strength:
            continue
        found = _value_of(text, name, end, strength)
        if found is not None:
            yield found
            after = found[1]


def _value_of(text: str, name: str, end: int, strength: str) -> tuple[int, int] | None:
    """Where the value stands of a name that ends here, or None without a value to cut."""
    separator = _SEPARATOR.match(text, end)
    if separator is None:
        return None
    at = separator.end()
    is_header = _HEADERS.match(name) is not None
    is_option = name.startswith("-")
    if separator["sign"] is None and is_option is is_header is False:
        return _spaced(text, at, strength) if separator["space"] and not separator["quote"] else None
    quoted = _quoted(text, at)
    if quoted is not None:
        return None if _harmless(text[slice(*quoted)], strength) else quoted
    if separator["comma"] is not None or (separator["space"] is not None and separator["quote"]):
        return None
    if is_header and ":" in (separator["sign"] or ""):
        value = _HEADER_VALUE.match(text, at)
        return None if value is None or _harmless(value[0].strip(), strength) else value.span()
    if (block := _BLOCK.match(text, at)) is not None:
        return block.span("block")
    bare = _BARE.match(text, at)
    if bare is None or _harmless(bare[0], strength) or (separator["space"] is not None and bare[0][0] == "-"):
        return None
    return bare.span()


def _quoted(text: str, at: int) -> tuple[int, int] | None:
    """What stands here in quotes, or in a list of texts in quotes, without the outer ones."""
    match = _QUOTED.match(text, at)
    if match is not None:
        form = next(each for each in ("lines", "double", "single", "nested") if match[each] is not None)
        return match.span(form)
    begin = _LIST_BEGINS.match(text, at)
    end = -1 if begin is None else text.find("]", begin.end(), begin.end() + VALUE_MAX)
    if begin is None or end < 0:
        return None
    inside = text[begin.end() : end].rstrip(" \t").removesuffix(",").rstrip(" \t")
    value = inside.removesuffix(begin[1])
    if "\n" in value or not value or value == inside:
        return None
    return begin.end(), begin.end() + len(value)


_LINKING = re.compile(r"(?:is|was)[ \t]+", re.IGNORECASE)


def _spaced(text: str, at: int, strength: str) -> tuple[int, int] | None:
    """The value of `password VALUE` (.netrc, SQL) or `token VALUE`: prose stays."""
    quoted = _QUOTED.match(text, at) if strength == "pass" else None
    if quoted is not None and quoted["single"] is not None:
        return None if _harmless(quoted["single"], strength) else quoted.span("single")
    linking = _LINKING.match(text, at) if strength == "pass" else None
    bare = _BARE.match(text, at if linking is None else linking.end())
    if bare is None or len(bare[0]) < _SPACED_MIN[strength] or _harmless(bare[0], strength):
        return None
    word = bare[0]
    is_prose = _IS_DIGEST.match(word) or not any(map(str.isdigit, word)) or not word.strip("0123456789:.TZ-")
    is_name = strength == "weak" and not word.isalnum()  # such as the key of a submission
    return None if is_prose or is_name or word[0] == "/" or "=" in word[1:-2] else bare.span()


def _harmless(value: str, strength: str) -> bool:
    """Whether a value behind the name of a secret is something else: a flag, a number, a path, a variable."""
    if len(value) < 4 or value.lower() in _STAYS or _IS_REFERENCE.match(value) or _IS_PATH.match(value):
        return True
    if strength != "pass" and _IS_NUMBER.match(value):
        return True
    if strength == "long":
        return len(value) < 16 or not any(map(str.isdigit, value))
    return strength == "weak" and (
        _IS_IDENTIFIER.match(value) is not None or _IS_DIGEST.match(value) is not None
    )
