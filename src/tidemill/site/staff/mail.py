"""Mail to the site's contact: SMTP (RFC 5321) to the server that the configuration names, bounded in time."""

from __future__ import annotations

import smtplib
import socket
import ssl
from email.message import EmailMessage

from tidemill.config.outlets import PLAIN, SmtpServer
from tidemill.config.site import SiteConfig
from tidemill.errors import SiteError
from tidemill.net import smtp

TIMEOUT_S = 20.0


def can_mail(config: SiteConfig) -> bool:
    """Whether a mail server and a contact are configured."""
    return bool(config.mail.server and config.contact)


def send(config: SiteConfig, subject: str, text: str) -> None:
    """Send a mail to the contact. Raises SiteError."""
    message = EmailMessage()
    try:
        message["From"] = config.contact
        message["To"] = config.contact
        message["Subject"] = " ".join(f"[tidemill {config.name}] {subject}".split())
        message.set_content(text)
        with _connect(config.mail.place) as server:
            server.send_message(message)
    except (
        OSError,
        smtplib.SMTPException,
        ValueError,
    ) as error:  # ValueError: the contact is malformed
        raise SiteError(
            f"failed to mail `{config.contact}` through `{config.mail.server}`: {error}",
            hint="check `mail.server` and `contact` in site.toml; a relay without encryption is "
            f"`{PLAIN}://HOST:PORT`",
        ) from error


def why_no_mail(config: SiteConfig) -> str:
    """Why the mail server does not answer as the configuration says; empty = it does. Sends no mail."""
    try:
        with _connect(config.mail.place):
            return ""
    except (OSError, smtplib.SMTPException) as error:
        return str(error) or type(error).__name__


def _connect(place: SmtpServer) -> smtplib.SMTP:
    """A connection. Certificates are those that the system believes."""
    return smtp.connect(place, timeout_s=TIMEOUT_S, context=ssl.create_default_context())


def stop_text(config: SiteConfig, reason: str, at: str) -> str:
    """The mail to the contact when the site was stopped."""
    return (
        f"Site `{config.name}` was stopped at {at} on {socket.gethostname()}:\n\n    {reason}\n\n"
        "Nothing is submitted any more, what waits in the queue is canceled, nodes are released in a minute.\n"
        "It stays so, also after restarts, until an operator says\n\n"
        "    tidemill site resume --reason 'what was agreed with the staff'\n"
    )
