"""One round at one queue manager: its machine object, then queue after queue, each a snapshot, failed ones too."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pipeline.collector.client import UNAUTHENTICATED, Answer, AskError, Client, Credentials
from pipeline.collector.get_info import value_json
from pipeline.collector.plan import MACHINE_PROPERTIES, Wanted, batches, configured, discovered
from pipeline.collector.transport import Clock, StoppedError
from udfs import codes

COLLECTOR_VERSION: Final = "1"
FORMAT_VERSION: Final = 1  # of the lines of a snapshot file
_ILLEGAL_PROPID: Final = 0xC00E0039
_GIVE_UP_AFTER: Final = 3  # objects in a row without any answer: the rest of the round is not tried
Snapshot = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an exchange may take, how often it is tried again, and the first pause before that (it doubles)."""

    timeout_s: float = 10.0
    retries: int = 2
    backoff_s: float = 1.0


@dataclass(slots=True)
class Report:
    """What came of a round at one machine: one line of it goes to whoever watches."""

    name: str
    round: int
    asked: int = 0
    answered: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    stopped: bool = False
    reached: bool = False  # some object was answered, be it with a failing HRESULT

    @property
    def failed(self) -> int:
        """Objects without a successful answer."""
        return self.asked - self.answered

    def line(self) -> str:
        """Tell it in one line."""
        why = ", ".join(f"{code} {count}" for code, count in sorted(self.failures.items()))
        return (
            f"{self.name}: round {self.round}: {self.asked} objects asked, {self.answered} answered, "
            f"{self.failed} failed{f' ({why})' if why else ''}, {self.seconds:.2f} s"
            + (f", {self.retries} asked again" if self.retries else "")
            + (", stopped before its end" if self.stopped else "")
        )


Now = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the time, UTC."""
    return datetime.now(UTC)


class Round:
    """Asks one queue manager about everything that is wanted of it."""

    def __init__(
        self, wanted: Wanted, credentials: Credentials, patience: Patience, clock: Clock, *, number: int = 1,
        illegal: dict[str, set[int]] | None = None, now: Now = utc_now,
    ) -> None:  # fmt: skip
        """``illegal`` remembers from round to round the properties that the machine does not know."""
        self._wanted = wanted
        self._patience = patience
        self._clock = clock
        self._client = Client(wanted.place, credentials, timeout_s=patience.timeout_s, clock=clock)
        self._illegal = {} if illegal is None else illegal
        self._now = now
        self._unanswered = 0
        self._connecting = False
        self._gone: AskError | None = None
        self.report = Report(wanted.name, number)

    def snapshots(self) -> Iterator[Snapshot]:
        """Yield a snapshot of the machine and of each queue; ends early when the collector is to stop."""
        begun = time.monotonic()
        try:
            machine, answer = self._object(None, MACHINE_PROPERTIES)
            yield machine
            for name in [*configured(self._wanted), *discovered(self._wanted, answer)]:
                snapshot, _ = self._object(name, self._wanted.properties)
                yield snapshot
        except StoppedError:
            self.report.stopped = True
        finally:
            self._client.close()
            self.report.seconds = time.monotonic() - begun
            self.report.waited_s = self._client.waited_s

    def _object(self, format_name: str | None, properties: Sequence[int]) -> tuple[Snapshot, Answer | None]:
        """Ask about one object; its snapshot, and the machine's whole answer where there is one."""
        asked_at = self._now()
        object_type = "machine" if format_name is None else "queue"
        row: Snapshot = {
            "version": FORMAT_VERSION,
            "queue_manager": self._wanted.name,
            "server_address": None,
            "object_type": object_type,
            "format_name": format_name,
            "asked_at": moment(asked_at),
            "collected_at": None,
            "hresult": None,
            "error": None,
            "properties": [{"property_id": number, "vt": None, "value_json": None} for number in properties],
            "collector_version": COLLECTOR_VERSION,
        }
        self.report.asked += 1
        try:
            if self._gone is not None:
                raise self._gone
            hresult, values = self._answers(object_type, format_name, properties)
        except AskError as error:
            row["error"] = error.code
            row["server_address"] = self._client.address
            self._failed(error)
            return row, None
        self._unanswered, self.report.reached = 0, True
        row |= {"server_address": self._client.address, "collected_at": moment(self._now()), "hresult": hresult}
        if hresult & codes.FAILURE:
            self.report.failures[codes.name_of(codes.HRESULT, hresult)] += 1
            return row, None
        self.report.answered += 1
        row["properties"] = [
            {"property_id": number, "vt": vt, "value_json": value_json(value)} for number, (vt, value) in values.items()
        ]
        nothing: tuple[int, Any] = (0, None)
        return row, Answer(hresult, [values.get(number, nothing) for number in properties])

    def _failed(self, error: AskError) -> None:
        self.report.failures[error.code] += 1
        self._unanswered += 1
        silent = self._unanswered >= _GIVE_UP_AFTER and not error.code.startswith("fault:")
        if self._connecting or silent or error.code == UNAUTHENTICATED:
            self._gone = error  # the rest would only be waited for in vain

    def _answers(
        self, object_type: str, format_name: str | None, properties: Sequence[int]
    ) -> tuple[int, dict[int, tuple[int, Any]]]:
        """Ask in batches; the first failing HRESULT, and the values by property.

        A property that this queue manager does not know fails the whole question (0xC00E0039, 3.1.4.1 note 16; rule
        M19: older ones lack 24 to 27). It is found by asking for halves, once, and left out: it is absent then.
        """
        unknown = self._illegal.setdefault(object_type, set())
        values: dict[int, tuple[int, Any]] = {}
        known = [number for number in properties if number not in unknown] or list(properties)
        waiting = list(batches(known))[::-1]
        refused = 0
        while waiting:
            batch = waiting.pop()
            answer = self._patiently(format_name, batch)
            if answer.hresult == _ILLEGAL_PROPID and len(known) > 1:
                refused = answer.hresult
                if len(batch) == 1:
                    unknown.add(batch[0])
                else:
                    half = len(batch) // 2
                    waiting += [batch[half:], batch[:half]]
                continue
            if answer.hresult & codes.FAILURE:
                return answer.hresult, {}
            values.update(zip(batch, answer.values, strict=True))
        if not values:  # not one of them is known there: that is no matter of single properties
            unknown.clear()
            return refused or _ILLEGAL_PROPID, {}
        return 0, values

    def _patiently(self, format_name: str | None, batch: tuple[int, ...]) -> Answer:
        """Ask, and again after a pause where that may help."""
        pause = self._patience.backoff_s
        for attempt in range(self._patience.retries + 1):
            if attempt:
                self.report.retries += 1
                self._clock.pause(pause)
                pause *= 2
            try:
                if not self._client.connected:
                    self._connecting = True
                    self._client.connect()
                    self._connecting = False
                return self._client.ask(format_name, batch)
            except AskError as error:
                if not error.again or attempt == self._patience.retries:
                    raise
        raise AssertionError("the loop ends by an answer or an error")


def moment(when: datetime) -> str:
    """Return a UTC time as snapshot files have it."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
