"""Security identifiers as text ([MS-DTYP] 2.4.2)."""

from __future__ import annotations

import struct
from functools import lru_cache


@lru_cache(maxsize=8192)
def sid_text(raw: bytes) -> str | None:
    """Return a SID as ``S-1-...``, [MS-DTYP] 2.4.2.1; None if the bytes are not a SID."""
    if len(raw) < 8 or raw[0] != 1 or raw[1] > 15 or len(raw) != 8 + 4 * raw[1]:
        return None
    authority = int.from_bytes(raw[2:8], "big")
    named = f"0x{authority:012x}" if authority >> 32 else str(authority)
    return "-".join(("S-1", named, *map(str, struct.unpack_from(f"<{raw[1]}I", raw, 8))))
