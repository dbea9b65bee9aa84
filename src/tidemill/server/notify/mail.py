"""Mail by SMTP with TLS (`net/smtp`) and authentication (RFC 4954); one connection per round."""

from __future__ import annotations

import contextlib
import smtplib
from collections import deque
from collections.abc import Callable
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate

from tidemill import clock
from tidemill.config.notify import Mail
from tidemill.errors import SiteError, blaming
from tidemill.net import smtp
from tidemill.server import constants
from tidemill.server.errors import AwayError, LaterError, RefusedError
from tidemill.server.notices.sender import Parcel
from tidemill.server.notify import text
from tidemill.wire.credentials import Credentials, read_login

_HINT = "check `[mail]` in server.toml; `tidemill server notify mail:ADDRESS` tries it"


class Mailer:
    """Sends mails. Raises ConfigError at once when the login or certificates cannot be read."""

    def __init__(self, config: Mail, *, monotonic_s: Callable[[], float] = clock.monotonic_s) -> None:
        self._config = config
        self._monotonic_s = monotonic_s
        with blaming("server.toml: `mail.secret_file`"):
            self._login = None if config.secret_file is None else read_login(config.secret_file)
        with blaming("server.toml: `mail.ca`"):
            self._tls = Credentials(ca=config.ca).context()
        self._server: smtplib.SMTP | None = None
        self._sent_s: deque[float] = deque(maxlen=constants.MAILS_PER_MIN_MAX)

    def send(self, parcel: Parcel) -> None:
        """Send a mail. Raises RefusedError, LaterError or AwayError."""
        if len(self._sent_s) == constants.MAILS_PER_MIN_MAX:
            wait_s = self._sent_s[0] + 60 - self._monotonic_s()
            if wait_s > 0:
                raise AwayError(
                    f"{constants.MAILS_PER_MIN_MAX} mails were sent within a minute", wait_s=wait_s
                )
        server = self._connected()
        try:
            server.send_message(self.message(parcel), self._config.sender, [parcel.where])
        except smtplib.SMTPRecipientsRefused as error:
            self._reset()
            raise _refusal(parcel, *error.recipients[parcel.where]) from error
        except smtplib.SMTPSenderRefused as error:
            self.release()
            raise AwayError(
                f"`{self._config.server}` refuses mail from `{self._config.sender}`: {_reply_text(error.smtp_error)}",
                hint=_HINT,
            ) from error
        except smtplib.SMTPResponseException as error:
            self._reset()
            raise _refusal(parcel, error.smtp_code, error.smtp_error) from error
        except (OSError, smtplib.SMTPException) as error:
            self.release()
            raise self._away(error) from error
        self._sent_s.append(self._monotonic_s())

    def message(self, parcel: Parcel) -> EmailMessage:
        """The mail. Its Message-ID is the same however often it is sent, so that a second copy is seen as one."""
        config, digest = self._config, parcel.digest
        made = EmailMessage(policy=SMTP.clone(cte_type="7bit"))  # every server takes that
        made["From"] = Address("Tidemill", addr_spec=config.sender)
        made["To"] = parcel.where
        made["Subject"] = text.subject(digest)
        made["Date"] = formatdate(digest.made_us / 1e6)
        made["Message-ID"] = f"<tidemill.{digest.id}@{config.sender.partition('@')[2]}>"
        made["Auto-Submitted"] = "auto-generated"  # RFC 3834: holiday answers leave it alone
        made.set_content(text.body(digest))
        return made

    def release(self) -> None:
        """Close the connection."""
        if self._server is not None:
            with contextlib.suppress(OSError, smtplib.SMTPException):
                self._server.quit()
            self._server.close()
            self._server = None

    def _reset(self) -> None:
        """After a refusal the server waits for the next mail, or is given up."""
        try:
            if self._server is not None:
                self._server.rset()
        except (OSError, smtplib.SMTPException):
            self.release()

    def _connected(self) -> smtplib.SMTP:
        if self._server is None:
            try:
                self._server = self._connect()
            except (OSError, smtplib.SMTPException, ValueError) as error:  # a challenge that is not base64
                raise self._away(error) from error
        return self._server

    def _connect(self) -> smtplib.SMTP:
        server = smtp.connect(self._config.place, timeout_s=constants.MAIL_TIMEOUT_S, context=self._tls)
        try:
            if self._login is not None:
                server.login(*self._login)
        except BaseException:
            server.close()
            raise
        return server

    def _away(self, error: Exception) -> SiteError:
        if isinstance(error, smtplib.SMTPAuthenticationError):
            why = (
                f"refuses the login of `mail.secret_file` ({error.smtp_code})"  # its text may repeat the user
            )
        elif isinstance(error, smtplib.SMTPResponseException):
            why = f"answers {error.smtp_code} {_reply_text(error.smtp_error)}"
        elif isinstance(error, ValueError) and not isinstance(error, OSError):
            why = f"answers what cannot be read: {_reply_text(str(error))}"
        else:
            why = f"is unreachable: {error}"
        return AwayError(f"mail server `{self._config.server}` {why}", hint=_HINT)


def _refusal(parcel: Parcel, code: int, said: bytes | str) -> SiteError:
    """5yz replies are permanent, 4yz are not: RFC 5321 4.2.1."""
    what = f"mail to `{parcel.where}` was refused: {code} {_reply_text(said)}"
    if 500 <= code < 600:
        return RefusedError(what, hint="is the address right?", transient=False)
    return LaterError(what)


def _reply_text(words: bytes | str) -> str:
    return text.clean(words.decode(errors="replace") if isinstance(words, bytes) else words)[:200]
