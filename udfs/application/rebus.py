"""Headers of Rebus: the extension is a JSON dictionary with keys ``rbs2-...``, in old versions ``rebus-...``."""

from __future__ import annotations

import re
from typing import Final

from udfs.application.application_message import (
    ApplicationMessage,
    Headers,
    first_of,
    split_types,
    utc_time,
    whole_number,
)

FRAMEWORK: Final = "Rebus"
KEY_PREFIXES: Final = ("rbs2-", "rebus-")
EXCEPTION_TEXT_HEADERS: Final = frozenset({"rbs2-error-details", "rebus-error-message"})

# A class whose name has a namespace, in front of its message, as .NET writes exceptions.
_EXCEPTION: Final = re.compile(r"(?<![\w.+])([A-Za-z_]\w*(?:[.+][A-Za-z_]\w*)+): ?(.*)")
_AROUND_OTHERS: Final = "System.AggregateException"
_SEARCHED: Final = 4096  # characters of the details


def read_rebus(headers: Headers, prefix: str) -> ApplicationMessage:
    """Return what the headers of a message of Rebus say; ``prefix`` is the one of its keys."""
    details = first_of(headers, *sorted(EXCEPTION_TEXT_HEADERS, reverse=True))
    exception = _first_exception(details)
    return ApplicationMessage(
        framework=FRAMEWORK,
        framework_evidence=f"extension {prefix} keys",
        application_message_id=first_of(headers, "rbs2-msg-id", "rebus-msg-id"),
        conversation_id=first_of(headers, "rbs2-corr-id", "rebus-correlation-id"),
        related_to=first_of(headers, "rbs2-in-reply-to"),
        sent_types=split_types(headers.get("rbs2-msg-type")),
        originating_endpoint=first_of(headers, "rbs2-sender-address"),
        reply_to=first_of(headers, "rbs2-return-address", "rebus-return-address"),
        intent=first_of(headers, "rbs2-intent"),
        failed_queue=first_of(headers, "rbs2-source-queue", "rebus-source-queue"),
        exception_type=exception[1] if exception else None,
        exception_message=exception[2].strip() or None if exception else details,
        immediate_retries=whole_number(headers.get("rbs2-delivery-count")),
        delayed_retries=whole_number(headers.get("rbs2-defer-count")),
        application_sent_at=utc_time(headers.get("rbs2-senttime")),
        application_headers=headers,
    )


def _first_exception(details: str | None) -> re.Match[str] | None:
    """Return the first exception in details of an error that is not one around others."""
    found = _EXCEPTION.finditer((details or "")[:_SEARCHED].replace("---> ", "\n"))
    return next((each for each in found if each[1] != _AROUND_OTHERS), None)
