"""Read the headers that RemoteRead appends to a message, [MS-MQRR] 2.2.5.2 to 2.2.5.5."""

from __future__ import annotations

import numpy as np

from udfs.messages import header_layouts as layouts
from udfs.messages.record_readers import note_wrong_size, read_header, write_values
from udfs.stubs.column_cursors import MALFORMED_CODE, TRUNCATED_CODE, ColumnCursors, DecodedColumns


def read_trailing_headers(cursors: ColumnCursors, soft: DecodedColumns) -> None:
    """Read ExtensionHeader, SubqueueHeader, DeadLetterHeader and ExtendedAddressHeader, as far as flags announce them.

    Their position is where the message's own headers end (doubt D35). One of the ExtensionHeader's two sizes must be
    right, or the bytes are something else. Wrong sizes of headers with a fixed layout are errors in ``soft``.
    """
    at = cursors.position
    found = read_header(cursors, "ExtensionHeader", layouts.EXTENSION_HEADER)
    remaining = found["RemainingHeadersSize"].astype(np.int64)
    declared = cursors.position + remaining
    wrong = found["HeaderSize"] != layouts.EXTENSION_HEADER.itemsize
    cursors.fail(wrong & (declared != cursors.end), MALFORMED_CODE, "ExtensionHeader.HeaderSize", at)
    note_wrong_size(soft, cursors, wrong, "ExtensionHeader.HeaderSize", at)
    flags = found["Flags"]
    for flag, read in (
        (layouts.EXTENSION_FLAG_SQ, _read_subqueue_header),
        (layouts.EXTENSION_FLAG_DL, _read_dead_letter_header),
        (layouts.EXTENSION_FLAG_EA, _read_extended_address_header),
    ):
        index, part = cursors.subset(flags & flag != 0)
        if len(index):
            read(part, soft)
            cursors.merge_subset(index, part)
    cursors.fail(declared > cursors.end, TRUNCATED_CODE, "ExtensionHeader.RemainingHeadersSize", at + 4)
    note_wrong_size(soft, cursors, declared != cursors.position, "ExtensionHeader.RemainingHeadersSize", at + 4)


def _read_subqueue_header(cursors: ColumnCursors, soft: DecodedColumns) -> None:
    """Read a SubqueueHeader, [MS-MQRR] 2.2.5.3."""
    at = cursors.position
    found = read_header(cursors, "SubqueueHeader", layouts.SUBQUEUE_HEADER)
    write_values(cursors, "subqueues at", cursors.advance(layouts.SUBQUEUE_NAMES_BYTES, "SubqueueHeader.SubqueueName"))
    wrong = found["HeaderSize"] != layouts.SUBQUEUE_HEADER.itemsize + layouts.SUBQUEUE_NAMES_BYTES
    note_wrong_size(soft, cursors, wrong, "SubqueueHeader.HeaderSize", at)


def _read_dead_letter_header(cursors: ColumnCursors, _soft: DecodedColumns) -> None:
    """Read a DeadLetterHeader, [MS-MQRR] 2.2.5.4: its size, and a path name padded with NULs."""
    at = cursors.position
    size = read_header(cursors, "DeadLetterHeader", layouts.DEAD_LETTER_HEADER)["HeaderSize"].astype(np.int64) - 4
    cursors.fail(size < 0, MALFORMED_CODE, "DeadLetterHeader.HeaderSize", at)
    write_values(cursors, "dead letter at", cursors.advance(np.maximum(size, 0), "DeadLetterHeader.DeadLetterPathName"))
    write_values(cursors, "dead letter size", size)


def _read_extended_address_header(cursors: ColumnCursors, soft: DecodedColumns) -> None:
    """Read an ExtendedAddressHeader, [MS-MQRR] 2.2.5.5."""
    at = cursors.position
    found = read_header(cursors, "ExtendedAddressHeader", layouts.EXTENDED_ADDRESS_HEADER)
    wrong = found["HeaderSize"] != layouts.EXTENDED_ADDRESS_HEADER.itemsize
    note_wrong_size(soft, cursors, wrong, "ExtendedAddressHeader.HeaderSize", at)
