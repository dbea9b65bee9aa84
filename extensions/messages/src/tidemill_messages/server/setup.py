"""What a broker needs for Tidemill, from `[amqp]`: users, least rights, exchanges, queues, limits. Pure.

Only the broker's staff declares exchanges and queues: each user may write to one exchange, which is its own, and read
its own queues.
Limits are policies, which can be changed while the broker runs. The format is RabbitMQ's definitions file
(https://www.rabbitmq.com/docs/definitions).
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from tidemill.errors import ConfigError
from tidemill_messages import constants
from tidemill_messages.broker import place_of
from tidemill_messages.names import (
    DEAD,
    REPLIES,
    STATES,
    SUBMIT,
    SYNC,
    SYNC_AGE_S,
    SYNC_QUEUE_MAX,
    is_name,
    replies_queue,
    states_queue,
    submit_queue,
    sync_queue,
)
from tidemill_messages.settings import Amqp

CONNECTIONS_MAX = 20
"""Of one submitter or site: its services, and people with the same certificate. The server's user has as many, and one
for the direct replies to each other user."""
CHANNELS_MAX = 100
QUEUE_BYTES_MAX = (
    1_000_000_000  #: of one queue, so that a reader that has stopped does not fill the broker's disk
)
NOTHING = "^$"
CLASSIC = "classic"  #: RabbitMQ's own default; `quorum` queues are for brokers of several machines


def check(config: Amqp) -> None:
    """Raises ConfigError where names or users do not go together."""
    users: dict[str, str] = {config.user: "the server"}
    for role, names in _roles(config):
        for name, user in names.items():
            if not is_name(name):
                raise ConfigError(
                    f"`amqp.users`: `{name}`, the {role} that `{user}` is, is not a valid name",
                    hint="letters, digits and `._+-`, at most 100",
                )
            what = f"the {role} `{name}`"
            if user in users:
                raise ConfigError(
                    f"`amqp.users`: the broker's user `{user}` is {users[user]} already, and cannot be {what}",
                    hint="one certificate, one role; a broker that takes users from the whole name of a certificate "
                    "(`ssl_cert_login_from = distinguished_name`) tells them apart",
                )
            users[user] = what


def definitions(config: Amqp, vhost: str, *, queue_type: str = CLASSIC) -> dict[str, Any]:
    """The definitions file."""
    check(config)
    own = [sync_queue(name) for name in sorted(config.sites)]
    own += [submit_queue(name) for name in sorted(config.submitters)]
    exchanges = [(REPLIES, "direct"), (STATES, "direct"), *((name, "fanout") for name in (DEAD, *own))]
    bindings = [(name, "", name) for name in (DEAD, *own)]
    for name in sorted(config.submitters):
        bindings += [(REPLIES, name, replies_queue(name)), (STATES, name, states_queue(name))]
    names = [queue for _, _, queue in bindings]
    kind = {"x-queue-type": queue_type} if queue_type != CLASSIC else {}
    number = len(rights(config))
    return {
        "vhosts": [{"name": vhost}],
        "users": [
            {
                "name": user, "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "",
                "limits": {
                    "max-connections": CONNECTIONS_MAX + (number if user == config.user else 0),
                    "max-channels": CHANNELS_MAX + 4 * number,
                },
            }
            for user in rights(config)
        ],
        "permissions": [
            {"user": user, "vhost": vhost, "configure": NOTHING, "write": write, "read": read}
            for user, (write, read) in rights(config).items()
        ],
        "parameters": [
            {
                "vhost": vhost, "component": "vhost-limits", "name": "limits",
                "value": {"max-connections": (CONNECTIONS_MAX + 1) * number},
            }
        ],
        "policies": policies(config, vhost),
        "exchanges": [
            {
                "name": name, "vhost": vhost, "type": form, "durable": True, "auto_delete": False, "internal": False,
                "arguments": {},
            }
            for name, form in exchanges
        ],
        "queues": [
            {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": kind} for name in names
        ],
        "bindings": [
            {
                "source": exchange, "vhost": vhost, "destination": queue, "destination_type": "queue",
                "routing_key": key, "arguments": {},
            }
            for exchange, key, queue in bindings
        ],
    }  # fmt: skip


def rights(config: Amqp) -> dict[str, tuple[str, str]]:
    """By the broker's user: patterns of what it may write to and read. No user may declare or delete."""
    result = {config.user: (_any(REPLIES, STATES, DEAD, "amq.default"), _server_reads())}
    for name, user in sorted(config.submitters.items()):
        result[user] = (_any(submit_queue(name)), _any(replies_queue(name), states_queue(name)))
    for name, user in sorted(config.sites.items()):
        result[user] = (_any(sync_queue(name)), NOTHING)
    for _, user in sorted(config.operators.items()):
        result[user] = (NOTHING, _any(DEAD))
    return result


def policies(config: Amqp, vhost: str) -> list[dict[str, Any]]:
    """Limits. A full queue of jobs or states refuses what is new, so its sender keeps it; others drop the oldest."""
    full = {"max-length": constants.QUEUE_MESSAGES_MAX, "max-length-bytes": QUEUE_BYTES_MAX}
    found: list[tuple[str, dict[str, Any]]] = [
        (rf"^{re.escape(SUBMIT)}\.", {**full, "overflow": "reject-publish", "dead-letter-exchange": DEAD}),
        (rf"^{re.escape(STATES)}\.", {**full, "overflow": "reject-publish"}),
        (rf"^{re.escape(REPLIES)}\.", {**full, "overflow": "drop-head"}),
        (rf"^{re.escape(DEAD)}$", {**full, "overflow": "drop-head"}),
        (
            rf"^{re.escape(SYNC)}\.",
            {"max-length": SYNC_QUEUE_MAX, "overflow": "drop-head", "message-ttl": int(SYNC_AGE_S * 1000)},
        ),
    ]
    names = (SUBMIT, STATES, REPLIES, DEAD, SYNC)
    return [
        {
            "vhost": vhost, "name": name, "pattern": pattern, "apply-to": "queues", "priority": 1,
            "definition": definition,
        }
        for name, (pattern, definition) in zip(names, found, strict=True)
    ]  # fmt: skip


def commands(config: Amqp, vhost: str, *, ctl: str = "rabbitmqctl", queue_type: str = CLASSIC) -> list[str]:
    """Lines of shell for the broker's staff that do the same; exchanges and queues come with an import in any case."""
    made = definitions(config, vhost, queue_type=queue_type)
    where = f"-p {shlex.quote(vhost)}"
    lines = [f"{ctl} add_vhost {shlex.quote(vhost)}"]
    for user in made["users"]:
        name = shlex.quote(user["name"])
        lines += [
            f'{ctl} add_user {name} "$(openssl rand -hex 32)"',
            f"{ctl} clear_password {name}  # only its certificate logs in",
            f"{ctl} set_user_limits {name} {shlex.quote(json.dumps(user['limits']))}",
        ]
    for each in made["permissions"]:
        patterns = " ".join(shlex.quote(each[key]) for key in ("configure", "write", "read"))
        lines.append(f"{ctl} set_permissions {where} {shlex.quote(each['user'])} {patterns}")
    limits = made["parameters"][0]["value"]
    lines.append(f"{ctl} set_vhost_limits {where} {shlex.quote(json.dumps(limits))}")
    for each in made["policies"]:
        policy = " ".join(map(shlex.quote, (each["name"], each["pattern"], json.dumps(each["definition"]))))
        lines.append(f"{ctl} set_policy {where} --apply-to queues --priority 1 {policy}")
    rest = {key: made[key] for key in ("exchanges", "queues", "bindings")}
    lines += [f"{ctl} import_definitions <<'END'", json.dumps(rest), "END"]
    return lines


def vhost_of(config: Amqp) -> str:
    """The virtual host that the configuration names. Raises ConfigError when messages are not configured."""
    if config.url is None:
        raise ConfigError("server.toml names no broker", hint='set `url = "amqps://HOST/VHOST"` in `[amqp]`')
    return place_of(config.url)[2]


def _roles(config: Amqp) -> list[tuple[str, dict[str, str]]]:
    return [("submitter", config.submitters), ("site", config.sites), ("operator", config.operators)]


def _any(*names: str) -> str:
    """A pattern of exactly these names."""
    escaped = [re.escape(name) for name in names]
    return f"^{escaped[0]}$" if len(escaped) == 1 else f"^({'|'.join(escaped)})$"


def _server_reads() -> str:
    return rf"^({re.escape(SUBMIT)}|{re.escape(SYNC)})\..*$"
