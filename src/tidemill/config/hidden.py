"""The usual names of credentials, which programs in slots see only where their owner says so. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

BELOW_HOME = (
    *(".ssh", ".gnupg", ".globus", ".globusonline", ".oidc-agent", ".config/oidc-agent", ".voms"),
    *(
        ".netrc",
        ".authinfo",
        ".pgpass",
        ".my.cnf",
        ".mylogin.cnf",
        ".git-credentials",
        ".config/git/credentials",
    ),
    *(
        ".aws",
        ".azure",
        ".oci",
        ".config/gcloud",
        ".boto",
        ".s3cfg",
        ".s3",
        ".mc",
        ".config/rclone",
        ".rclone.conf",
    ),
    *(".kube", ".docker", ".config/containers", ".singularity", ".apptainer", ".vault-token", ".terraform.d"),
    *(".config/gh", ".config/glab-cli", ".config/hub", ".npmrc", ".pypirc", ".config/pypoetry/auth.toml"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".huggingface", ".cache/huggingface/token", ".kaggle"),
    *(".local/share/keyrings", ".password-store", ".config/op", ".config/tidemill", ".dcache", ".rucio"),
    *(
        ".mozilla",
        ".thunderbird",
        ".config/google-chrome",
        ".config/chromium",
        ".Xauthority",
        ".ICEauthority",
    ),
)
"""Below a home directory: keys, tokens and passwords of common programs, and their agents' sockets."""

BELOW_TMP = (
    *(
        "krb5cc",
        "x509up_u",
        "x509cp_u",
        "bt_u",
        "tkt",
        "oidc-",
        "ssh-",
        "gpg-",
        "keyring-",
        "dbus-",
        "agent.",
    ),
    *("tmux-", "screens", "uscreens", ".X11-unix", ".ICE-unix", ".XIM-unix", "vscode-", "pulse-", "ompi."),
)
"""What names in /tmp begin with: tickets, proxies, tokens, and sockets of agents and sessions."""

TMP = Path("/tmp")


def credential_patterns(homes: Iterable[Path] = ()) -> list[str]:
    """As nodes receive them: `~/NAME`, the same in other homes, `/tmp/NAME*`."""
    below = [f"~/{name}" for name in BELOW_HOME]
    below += [str(home / name) for home in homes for name in BELOW_HOME]
    return [*below, *(f"{TMP}/{name}*" for name in BELOW_TMP)]


def is_credential(path: Path) -> bool:
    """Whether a path is a credential or a session, or lies in one, by its name."""
    if path.is_relative_to(TMP) and path != TMP and path.relative_to(TMP).parts[0].startswith(BELOW_TMP):
        return True
    return any(_holds(path.parts, Path(name).parts) for name in BELOW_HOME)


def why_hidden(path: Path) -> str | None:
    """Why site and application files may not name this path, None if they may. Looks at its name only."""
    if not path.is_absolute() or ".." in path.parts:
        return "is not an absolute path without `..`"
    if is_credential(path):
        return "is a credential or a session by its name"
    if path in (Path("/"), TMP, Path("/proc"), Path("/dev")):
        return "is not the directory of one user: name the entries in it"
    return None


def _holds(parts: tuple[str, ...], name: tuple[str, ...]) -> bool:
    return any(parts[at : at + len(name)] == name for at in range(1, len(parts)))
