"""The headers that RemoteRead puts behind a message: [MS-MQRR] 2.2.5.2 to 2.2.5.5."""

from __future__ import annotations

import numpy as np

from udfs.messages import headers as h
from udfs.messages.reading import MALFORMED, TRUNCATED, header, keep
from udfs.stubs.column import Cursors


def read_trailing(c: Cursors) -> None:
    """Read the headers behind a RemoteRead message, [MS-MQRR] 2.2.5.2 to 2.2.5.5, found by parsing (doubt D35)."""
    at = c.position
    found = header(c, "ExtensionHeader", h.EXTENSION)
    c.fail(found["HeaderSize"] != h.EXTENSION.itemsize, MALFORMED, "ExtensionHeader.HeaderSize", at)
    said = c.position + found["RemainingHeadersSize"]
    whole_end = c.end
    c.end = np.minimum(said, c.end)
    flags = found["Flags"]
    for flag, read in ((h.EXTENSION_SQ, _subqueue), (h.EXTENSION_DL, _dead_letter), (h.EXTENSION_EA, _address)):
        index, part = c.subset(flags & flag != 0)
        if len(index):
            read(part)
            c.join(index, part)
    c.end = whole_end
    c.fail(said > c.end, TRUNCATED, "ExtensionHeader.RemainingHeadersSize", at + 4)
    c.fail(said != c.position, MALFORMED, "ExtensionHeader.RemainingHeadersSize", at + 4)


def _subqueue(c: Cursors) -> None:
    """Read a SubqueueHeader, [MS-MQRR] 2.2.5.3."""
    at = c.position
    found = header(c, "SubqueueHeader", h.SUBQUEUE)
    keep(c, "subqueues at", c.take(h.SUBQUEUE_NAMES, "SubqueueHeader.SubqueueName"))
    c.fail(found["HeaderSize"] != h.SUBQUEUE.itemsize + h.SUBQUEUE_NAMES, MALFORMED, "SubqueueHeader.HeaderSize", at)


def _dead_letter(c: Cursors) -> None:
    """Read a DeadLetterHeader, [MS-MQRR] 2.2.5.4: its size, and a path name that NULs fill up."""
    at = c.position
    size = header(c, "DeadLetterHeader", np.dtype([("HeaderSize", "<u4")]))["HeaderSize"].astype(np.int64) - 4
    c.fail(size < 0, MALFORMED, "DeadLetterHeader.HeaderSize", at)
    keep(c, "dead letter at", c.take(np.maximum(size, 0), "DeadLetterHeader.DeadLetterPathName"))
    keep(c, "dead letter size", size)


def _address(c: Cursors) -> None:
    """Read an ExtendedAddressHeader, [MS-MQRR] 2.2.5.5."""
    at = c.position
    found = header(c, "ExtendedAddressHeader", h.ADDRESS)
    c.fail(found["HeaderSize"] != h.ADDRESS.itemsize, MALFORMED, "ExtendedAddressHeader.HeaderSize", at)
