"""The examples in a new server.toml: what a collaboration's server sets. `server init` writes them as comments."""

from __future__ import annotations

KEYS = {
    "database": '"postgresql://tidemill_server@db.example.org/tidemill"',
    "listen": '"0.0.0.0:8443"',
    "tls.certificate": '"../ca/tidemill.example.org.pem"',
    "tls.key": '"../ca/tidemill.example.org.key"',
    "tls.ca": '"../ca/ca.pem"',
    "roles.members": '{ "/DC=org/DC=example/CN=Ada Lovelace" = "operator ada" }',
    "mail.server": '"smtp.example.org:587"',
    "mail.sender": '"tidemill@example.org"',
    "notify.allowed": '["mail:*@example.org"]',
}
"""Dotted key -> TOML text. `tidemill certs init` and `certs issue server` make the files of `[tls]`."""

TABLES = {
    "wards": """\
name = "other-sites"
waited_s = "6h"
failures = ["memory"]
cure = { memory_factor = 2, whole_node = true }""",
    "notify.rules": """\
to = "mail:operators@example.org"
when = ["site", "failures"]""",
    "notify.hooks": """\
name = "chat"
url = "https://chat.example.org/hooks/tidemill"
secret_file = "chat.secret\"""",
}
"""Of tables that a file may have several of, the keys of one."""
