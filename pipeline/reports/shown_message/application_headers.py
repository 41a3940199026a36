"""What the application's headers and body say of one message, whatever of it the lake keeps."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from schemas.messages import MESSAGES
from udfs.application.columns import KeptColumns, MessageParts, application_columns
from udfs.codes import MQMSG_CLASS_REPORT
from udfs.rows import RowMapping

_NATIVE_COLUMNS: Final = ("label", "response_queue", "app_specific", "correlation_id")


def read_application_headers(row: RowMapping, body: bytes | None) -> dict[str, Any]:
    """Return the values of ``APPLICATION_COLUMNS`` by name: those of a row of silver.messages, else of its bytes.

    ``application_headers`` has all headers that either has, by name.
    """
    is_readable = not (row["is_comqc"] or row["encrypted"] or row["class"] == MQMSG_CLASS_REPORT)
    data = np.frombuffer(body or b"\0", np.uint8)
    parts = MessageParts(
        pa.array([None if row["is_comqc"] else row["extension"]], pa.binary()),
        data, _one(0), _one(len(body or b"")), _one(row["body_bytes"] or 0), np.array([is_readable]),
        _one(row["body_type"] or 0),
        *(pa.array([row[name]], MESSAGES.column(name).type) for name in _NATIVE_COLUMNS),
    )  # fmt: skip
    read = {name: values[0].as_py() for name, values in application_columns(parts, KeptColumns()).items()}
    found = {name: read[name] if row[name] is None else row[name] for name in read}
    headers = dict(row["application_headers"] or ()) | dict(read["application_headers"] or ())
    return found | {"application_headers": headers}


def _one(value: int) -> np.ndarray[Any, Any]:
    return np.array([value], np.int64)
