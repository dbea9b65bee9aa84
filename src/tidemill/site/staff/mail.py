"""Mail to the site's contact: plain SMTP (RFC 5321) to the server that the configuration names, bounded in time."""

from __future__ import annotations

import smtplib
import socket
from email.message import EmailMessage

from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError

TIMEOUT_S = 20.0
SMTP_PORT = 25


def can_mail(config: SiteConfig) -> bool:
    """Whether a mail server and a contact are configured."""
    return bool(config.mail.server and config.contact)


def send(config: SiteConfig, subject: str, text: str) -> None:
    """Send a mail to the contact. Raises SiteError."""
    host, colon, port = config.mail.server.rpartition(":")
    if not colon:
        host, port = port, str(SMTP_PORT)
    message = EmailMessage()
    message["From"] = config.contact
    message["To"] = config.contact
    message["Subject"] = " ".join(f"[tidemill {config.name}] {subject}".split())
    message.set_content(text)
    try:
        with smtplib.SMTP(host.strip("[]"), int(port), timeout=TIMEOUT_S) as server:
            server.send_message(message)
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise SiteError(
            f"failed to mail `{config.contact}` through `{config.mail.server}`: {error}",
            hint="check `mail.server` and `contact` in site.toml",
        ) from error


def stop_text(config: SiteConfig, reason: str, at: str) -> str:
    """The mail to the contact when the site was stopped."""
    return (
        f"Site `{config.name}` was stopped at {at} on {socket.gethostname()}:\n\n    {reason}\n\n"
        "Nothing is submitted any more, what waits in the queue is canceled, nodes are released in a minute.\n"
        "It stays so, also after restarts, until an operator says\n\n"
        "    tidemill site resume --reason 'what was agreed with the staff'\n"
    )
