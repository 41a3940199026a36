"""Mail by SMTP: what is told of one notice is one thread. Only changes. No Spark."""

from __future__ import annotations

import re
import smtplib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Literal

from pipeline.notices.https_post import describe_connection_failure
from pipeline.notices.notice import BEGAN, Notice
from pipeline.notices.target import (
    SUMMARY_KEY,
    Call,
    NotDeliveredError,
    NoticeRequest,
    Summary,
    Target,
    keys_of,
    single_or_summary,
)
from pipeline.text import cut_text

Security = Literal["starttls", "tls", "none"]
PORTS: Final[dict[Security, int]] = {"starttls": 587, "tls": 465, "none": 25}
_DOMAIN: Final = "msmq-lakehouse.invalid"  # of message identifiers: no machine is named
_SUBJECT_CHARS: Final = 200


@dataclass(frozen=True)
class MailServer:
    """A server that takes mail, and how: TLS after STARTTLS, TLS from the start, or none. Its text holds nothing."""

    host: str = field(repr=False)
    port: int = field(repr=False)
    security: Security
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None

    def send(self, mail: EmailMessage, timeout_s: float) -> None:
        """Send a mail; NotDeliveredError unless the server takes it for all its recipients."""
        try:
            with self._connect(timeout_s) as server:
                if self.user is not None:
                    server.login(self.user, self.password or "")
                refused = server.send_message(mail)
        except smtplib.SMTPResponseException as error:
            is_down = error.smtp_code < 500 or isinstance(error, smtplib.SMTPAuthenticationError)
            raise NotDeliveredError(f"the mail server answered with {error.smtp_code}", is_down=is_down) from None
        except smtplib.SMTPException as error:
            raise NotDeliveredError(f"the mail was not taken ({type(error).__name__})", is_down=False) from None
        except OSError as error:
            raise NotDeliveredError(describe_connection_failure(error), is_down=True) from None
        if refused:
            raise NotDeliveredError(f"the mail server refused {len(refused)} of the recipients", is_down=False)

    def _connect(self, timeout_s: float) -> smtplib.SMTP:
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.security == "tls":
            return smtplib.SMTP_SSL(self.host, self.port, timeout=timeout_s, context=context)
        server = smtplib.SMTP(self.host, self.port, timeout=timeout_s)
        if self.security == "starttls":
            try:
                server.starttls(context=context)
            except BaseException:
                server.close()
                raise
        return server


@dataclass(frozen=True)
class Mail(Target):
    """Recipients of mail."""

    is_reminded: ClassVar[bool] = False
    server: MailServer
    sender: str = field(repr=False)
    recipients: tuple[str, ...] = field(repr=False)

    def requests(self, call: Call) -> Iterator[NoticeRequest]:
        """Yield one request for each notice, or one for all of too many."""
        for message in single_or_summary(call.to_send):
            yield NoticeRequest(keys_of(message), partial(self.server.send, self._mail(message, call.now)))

    def _mail(self, message: Notice | Summary, now: datetime) -> EmailMessage:
        mail = EmailMessage()
        mail["From"], mail["To"] = self.sender, ", ".join(self.recipients)
        mail["Subject"] = cut_text(message.title, _SUBJECT_CHARS)
        mail["Date"] = format_datetime(now)
        mail["Auto-Submitted"] = "auto-generated"
        at = now.isoformat()
        if isinstance(message, Summary):
            mail["Message-ID"] = _message_id(SUMMARY_KEY, at)
        elif message.action == BEGAN:
            mail["Message-ID"] = _message_id(message.notice_key, message.begun_at or at)
        else:
            mail["Message-ID"] = _message_id(message.notice_key, f"{at}.{message.action}")
            mail["In-Reply-To"] = mail["References"] = _message_id(message.notice_key, message.begun_at or at)
        mail.set_content("\n\n".join(message.lines) + "\n")
        return mail


def _message_id(own_key: str, at: str) -> str:
    return f"<{own_key}.{re.sub('[^0-9a-z.]', '', at)}@{_DOMAIN}>"
