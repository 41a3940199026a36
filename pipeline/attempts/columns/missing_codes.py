"""What can be missing of the evidence for a conclusion: codes, and numbers in which each bit stands for a code."""

from __future__ import annotations

from typing import Final

MISSING_CODES: Final = (
    "answer_not_captured", "capture_begins", "capture_ends", "capture_loss", "clock_step", "clocks_differ", "damaged",
    "decode_error", "no_bind", "no_open", "no_request", "no_response", "one_direction", "queue_unknown", "sealed",
    "transaction_open",
)  # fmt: skip
"""What can be missing of attempts and operations, in the order of the column ``missing``."""
_BITS: Final = {code: 1 << number for number, code in enumerate(MISSING_CODES)}


def missing_bits(*codes: str) -> int:
    """Return codes of ``MISSING_CODES`` as bits."""
    return sum(_BITS[code] for code in codes)


def codes_of_bits(missing: int) -> list[str]:
    """Return the codes that bits stand for, sorted."""
    return [code for code, bit in _BITS.items() if missing & bit]
