"""What the codes of missing evidence (column ``missing`` of gold) mean, as text."""

from __future__ import annotations

from typing import Final

MISSING_CODE_TEXTS: Final = {
    "capture_begins": "a capture begins in the middle of a conversation that this depends on",
    "capture_ends": "the capture ends before the outcome",
    "capture_loss": "bytes of a connection that this depends on are missing from the captures",
    "clock_step": "the clock of a capture was set, or captures have other clocks: a duration is not known",
    "clocks_differ": "the sender's clock, by which it expires, differs from the capture's, or captures have other "
    "clocks: which sending was the first is not known",
    "one_direction": "one direction of a connection that this depends on was not captured",
    "no_bind": "the bind of a call was not captured: its interface was inferred",
    "no_close": "the call that closed the queue was not captured",
    "no_open": "the call that opened the queue was not captured",
    "no_request": "the request of a call was not captured",
    "no_response": "the response of a call was not captured",
    "damaged": "a call or a packet was captured only in part",
    "sealed": "a call is encrypted and no key decrypts it",
    "decode_error": "a call or message could not be decoded",
    "no_snapshot": "no snapshot of the queue",
    "transaction_open": "the wire does not show whether the transaction was committed",
    "queue_unknown": "the queue is unknown, or that of another read of the message",
}
