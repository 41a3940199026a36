"""Report messages: what queue managers on a traced message's route say of it, [MS-MQQB] 3.1.5.8.9 and 3.1.7.1.7."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa

from schemas.messages import MESSAGES
from udfs import codes
from udfs.array_types import Bools, Ints

REPORT_TYPE: Final = MESSAGES.column("report").type

MESSAGE_KINDS: Final = ("application", "report", "administration_ack")
_LABEL: Final = re.compile(r"([0-9A-Fa-f]{4}):([0-9A-Fa-f]{8}):([0-9A-Fa-f]{2}) received by ")
_NEXT_HOP: Final = re.compile(r"<NEXT HOP>([^<]*)</NEXT HOP>")


def parse_report(label: str | None, body: bytes) -> dict[str, Any] | None:
    """Return what a report says of a message, by the names of ``REPORT_TYPE``; None where the label is another.

    ``body`` is UTF-16LE text. The prefix is the first 4 hex digits of the source queue manager, in lower case.
    ``next_hop`` is an address as sent, without spaces around it; None without that element.
    """
    found = _LABEL.match(label or "")
    if found is None:
        return None
    hop = _NEXT_HOP.search(body[: len(body) & ~1].decode("utf-16-le", "replace"))
    return {
        "source_prefix": found[1].lower(),
        "message_ordinal": int(found[2], 16),
        "hop_count": int(found[3], 16),
        "next_hop": (hop[1].strip() or None) if hop else None,
    }


def report_column(classes: Ints, labels: pa.Array, bodies: pa.Array) -> pa.Array:
    """Return the column ``report``, null for other messages.

    ``classes`` are MessageClasses, -1 where not read; ``labels`` text; ``bodies`` binary. All have one value per row.
    """
    rows = np.flatnonzero(classes == codes.MQMSG_CLASS_REPORT)
    out: list[dict[str, Any] | None] = [None] * len(classes)
    chosen = pa.array(rows)
    texts = zip(rows.tolist(), labels.take(chosen).to_pylist(), bodies.take(chosen).to_pylist(), strict=True)
    for row, label, body in texts:
        out[row] = parse_report(label, body or b"")
    return pa.array(out, REPORT_TYPE) if len(rows) else pa.nulls(len(classes), REPORT_TYPE)


def message_kind(message_class: int) -> str:
    """Return ``report``, ``administration_ack`` or ``application``, by MessageClass ([MS-MQMQ] 2.2.18.1.6)."""
    return MESSAGE_KINDS[int(_kind_numbers(np.array([message_class]))[0])]


def message_kind_column(classes: Ints, valid: Bools) -> pa.Array:
    """Return the column ``message_kind``; null where not ``valid``."""
    return pa.array(MESSAGE_KINDS).take(pa.array(_kind_numbers(classes), mask=~valid))


def _kind_numbers(classes: Ints) -> Ints:
    """Return the position of each class's kind in ``MESSAGE_KINDS``."""
    acknowledges = np.isin(classes, codes.POSITIVE_ACKNOWLEDGEMENTS) | (classes & codes.NEGATIVE_CLASS_BIT != 0)
    return np.where(classes == codes.MQMSG_CLASS_REPORT, 1, np.where(acknowledges, 2, 0))
