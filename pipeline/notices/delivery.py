"""Delivery: targets at the same time, the requests of each one after the other, all within time limits. No Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Queue
from threading import Thread
from typing import Final

from pipeline.concurrency import run_concurrently
from pipeline.notices.target import NotDeliveredError, NoticeRequest

REQUEST_S: Final = 5.0
CALL_S: Final = 20.0  # for all targets
_MARGIN_S: Final = 0.2  # by which the limit that a request keeps itself is shorter


@dataclass(slots=True)
class Delivery:
    """What became of the requests to a target: the notices that it got, and why it did not get others."""

    delivered: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


def deliver(
    requests: Mapping[str, Sequence[NoticeRequest]], *, request_s: float = REQUEST_S, call_s: float = CALL_S
) -> dict[str, Delivery]:
    """Send the requests to each target, by its name; return what became of them.

    A request has ``request_s`` seconds, all together have ``call_s``. After a failure that others would share, the
    target gets nothing more in this call.
    """
    until = time.monotonic() + call_s
    sendings = {name: partial(_send, each, until, request_s) for name, each in requests.items()}
    return run_concurrently(sendings, at_once=max(len(sendings), 1))


def _send(requests: Sequence[NoticeRequest], until: float, request_s: float) -> Delivery:
    done = Delivery()
    for request in requests:
        left_s = min(until - time.monotonic(), request_s)
        if left_s <= 0:
            done.failures.append("the time of the call is over")
            break
        try:
            _within(left_s, request.send)
        except NotDeliveredError as error:
            done.failures.append(str(error))
            if error.is_down:
                break
        else:
            done.delivered |= request.notice_keys
    return done


def _within(seconds: float, send: Callable[[float], None]) -> None:
    """Call a function, and stop waiting for it after some time; NotDeliveredError, whatever goes wrong.

    The limits of sockets alone do not end a request whose answer comes byte by byte.
    """
    ended: Queue[NotDeliveredError | None] = Queue(1)
    Thread(target=_call, args=(send, max(seconds - _MARGIN_S, seconds / 2), ended), daemon=True).start()
    try:
        error = ended.get(timeout=seconds)
    except Empty:
        raise NotDeliveredError("it did not answer in time", is_down=True) from None
    if error is not None:
        raise error


def _call(send: Callable[[float], None], seconds: float, ended: Queue[NotDeliveredError | None]) -> None:
    try:
        send(seconds)
    except NotDeliveredError as error:
        ended.put(error)
    except Exception as error:  # noqa: BLE001 - its text may name the target
        ended.put(NotDeliveredError(type(error).__name__, is_down=False))
    else:
        ended.put(None)
