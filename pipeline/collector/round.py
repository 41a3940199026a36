"""One collection round at one queue manager: snapshots of its machine object and its queues, failed ones included."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pipeline.collector.client import (
    UNAUTHENTICATED_CODE,
    Credentials,
    ManagementAnswer,
    ManagementClient,
    RequestError,
)
from pipeline.collector.get_info_codec import encode_value_json
from pipeline.collector.targets import (
    MACHINE_PROPERTIES,
    CollectionTarget,
    configured_queues,
    discovered_queues,
    property_batches,
)
from pipeline.collector.transport import (
    BYTES_LIMIT_CODE,
    OBJECTS_LIMIT_CODE,
    SECONDS_LIMIT_CODE,
    CollectionStoppedError,
    RoundBudget,
    RoundLimitError,
    StopSignal,
)
from pipeline.settings import CollectorConfig
from udfs import codes
from udfs.call_results import call_succeeded
from udfs.dcerpc.interfaces import QMMGMT_NAME

COLLECTOR_VERSION: Final = "1"
SNAPSHOT_LINE_VERSION: Final = 1  # ``version`` in snapshot files
_ILLEGAL_PROPID: Final = 0xC00E0039
_MAX_SILENT_OBJECTS: Final = 3  # unanswered objects in a row, after which the rest of the round is skipped
_FINAL_CODES: Final = frozenset({UNAUTHENTICATED_CODE, OBJECTS_LIMIT_CODE, BYTES_LIMIT_CODE, SECONDS_LIMIT_CODE})
SnapshotRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Time limit of an exchange, number of retries, and pause before the first retry. The pause doubles each time."""

    timeout_s: float = CollectorConfig.timeout.total_seconds()
    retries: int = CollectorConfig.retries
    backoff_s: float = CollectorConfig.backoff.total_seconds()


@dataclass(frozen=True, slots=True)
class RoundLimits:
    """What a round may take from one queue manager: objects that are asked for, bytes of answers, and seconds."""

    objects: int = CollectorConfig.max_objects
    answer_bytes: int = CollectorConfig.max_bytes
    seconds: float = CollectorConfig.max_time.total_seconds()


DEFAULT_LIMITS: Final = RoundLimits()


@dataclass(slots=True)
class RoundReport:
    """Result of a round at one machine: counts of objects, failures by code, times."""

    name: str
    round_number: int
    requested: int = 0
    answered: int = 0
    failure_counts: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    seconds: float = 0.0
    retry_wait_s: float = 0.0
    stopped: bool = False
    reached: bool = False  # some object was answered, maybe with an error HRESULT
    not_named: int = 0  # queues that are in no snapshot: beyond twice the number of objects that may be asked for

    @property
    def failed(self) -> int:
        """Objects without a successful answer."""
        return self.requested - self.answered

    def format_line(self) -> str:
        """Return the report as one line of text."""
        why = ", ".join(f"{code} {count}" for code, count in sorted(self.failure_counts.items()))
        return (
            f"{self.name}: round {self.round_number}: {self.requested} objects requested, {self.answered} answered, "
            f"{self.failed} failed{f' ({why})' if why else ''}, {self.seconds:.2f} s"
            + (f", {self.retries} retries" if self.retries else "")
            + (f", {self.not_named} more queues are in no snapshot" if self.not_named else "")
            + (", stopped early" if self.stopped else "")
        )


UtcNow = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class CollectionRound:
    """Collects one snapshot of the machine and of each selected queue of a queue manager."""

    def __init__(
        self, target: CollectionTarget, credentials: Credentials, retry_policy: RetryPolicy, stop_signal: StopSignal, *,
        limits: RoundLimits = DEFAULT_LIMITS, round_number: int = 1,
        unsupported_properties: dict[str, set[int]] | None = None, now: UtcNow = utc_now,
    ) -> None:  # fmt: skip
        """``unsupported_properties`` (by object type) is kept between rounds: properties that the machine rejects.

        The seconds of ``limits`` begin now.
        """
        self._target = target
        self._retry_policy = retry_policy
        self._stop_signal = stop_signal
        self._max_objects = limits.objects
        self._budget = RoundBudget(limits.seconds, limits.answer_bytes)
        self._client = ManagementClient(
            target.address, credentials, timeout_s=retry_policy.timeout_s, stop_signal=stop_signal, budget=self._budget
        )
        self._unsupported = {} if unsupported_properties is None else unsupported_properties
        self._now = now
        self._silent_objects = 0
        self._connecting = False
        self._fatal_error: RequestError | RoundLimitError | None = None
        self.report = RoundReport(target.name, round_number)

    def collect(self) -> Iterator[SnapshotRow]:
        """Yield a snapshot of the machine and of each queue; ends early if the collector is stopped.

        Queues beyond a limit are snapshots too, whose error names the limit: at most as many as may be asked for.
        """
        begun = time.monotonic()
        try:
            machine, answer = self._collect_object(None, MACHINE_PROPERTIES)
            yield machine
            names = [*configured_queues(self._target), *discovered_queues(self._target, answer)]
            self.report.not_named = max(len(names) - 2 * self._max_objects, 0)
            for name in names[: 2 * self._max_objects]:
                snapshot, _ = self._collect_object(name, self._target.properties)
                yield snapshot
        except CollectionStoppedError:
            self.report.stopped = True
        finally:
            self._client.close()
            self.report.seconds = time.monotonic() - begun
            self.report.retry_wait_s = self._client.waited_s

    def _collect_object(
        self, format_name: str | None, properties: Sequence[int]
    ) -> tuple[SnapshotRow, ManagementAnswer | None]:
        """Request an object; return its snapshot, and the answer if it was successful."""
        asked_at = self._now()
        object_type = "machine" if format_name is None else "queue"
        row: SnapshotRow = {
            "version": SNAPSHOT_LINE_VERSION,
            "queue_manager": self._target.name,
            "server_address": None,
            "object_type": object_type,
            "format_name": format_name,
            "asked_at": format_snapshot_time(asked_at),
            "collected_at": None,
            "hresult": None,
            "error": None,
            "properties": [{"property_id": number, "vt": None, "value_json": None} for number in properties],
            "collector_version": COLLECTOR_VERSION,
        }
        self.report.requested += 1
        try:
            self._raise_if_over()
            hresult, values = self._get_properties(object_type, format_name, properties)
        except (RequestError, RoundLimitError) as error:
            row["error"] = error.code
            row["server_address"] = self._client.peer_address
            self._record_failure(error)
            return row, None
        self._silent_objects, self.report.reached = 0, True
        row |= {
            "server_address": self._client.peer_address,
            "collected_at": format_snapshot_time(self._now()),
            "hresult": hresult,
        }
        if not call_succeeded(QMMGMT_NAME, hresult):
            self.report.failure_counts[codes.result_name(hresult)] += 1
            return row, None
        self.report.answered += 1
        row["properties"] = [
            {"property_id": number, "vt": vt, "value_json": encode_value_json(value)}
            for number, (vt, value) in values.items()
        ]
        absent: tuple[int, Any] = (0, None)
        return row, ManagementAnswer(hresult, [values.get(number, absent) for number in properties])

    def _raise_if_over(self) -> None:
        """Raise the error that ended the round, or RoundLimitError if no more objects may be asked for."""
        if self._fatal_error is not None:
            raise self._fatal_error
        if self.report.requested > self._max_objects:
            raise RoundLimitError(OBJECTS_LIMIT_CODE)

    def _record_failure(self, error: RequestError | RoundLimitError) -> None:
        self.report.failure_counts[error.code] += 1
        self._silent_objects += 1
        silent = self._silent_objects >= _MAX_SILENT_OBJECTS and not error.code.startswith("fault:")
        if self._connecting or silent or error.code in _FINAL_CODES:
            self._fatal_error = error  # further requests would only time out, or lock the account

    def _get_properties(
        self, object_type: str, format_name: str | None, properties: Sequence[int]
    ) -> tuple[int, dict[int, tuple[int, Any]]]:
        """Request properties in batches; return the first error HRESULT or 0, and (vt, value) by property.

        One unsupported property fails the whole call (0xC00E0039, 3.1.4.1 note 16; rule M19: older queue managers lack
        24 to 27). Unsupported properties are found once by bisection, and then left out.
        """
        unsupported = self._unsupported.setdefault(object_type, set())
        values: dict[int, tuple[int, Any]] = {}
        supported = [number for number in properties if number not in unsupported] or list(properties)
        pending = list(property_batches(supported))[::-1]
        rejection = 0
        while pending:
            batch = pending.pop()
            answer = self._get_with_retries(format_name, batch)
            if answer.hresult == _ILLEGAL_PROPID and len(supported) > 1:
                rejection = answer.hresult
                if len(batch) == 1:
                    unsupported.add(batch[0])
                else:
                    half = len(batch) // 2
                    pending += [batch[half:], batch[:half]]
                continue
            if not call_succeeded(QMMGMT_NAME, answer.hresult):
                return answer.hresult, {}
            values.update(zip(batch, answer.values, strict=True))
        if not values:  # all were rejected: the cause is not a single property
            unsupported.clear()
            return rejection or _ILLEGAL_PROPID, {}
        return 0, values

    def _get_with_retries(self, format_name: str | None, batch: tuple[int, ...]) -> ManagementAnswer:
        """Request properties, with retries after a pause for retryable errors."""
        pause = self._retry_policy.backoff_s
        for attempt in range(self._retry_policy.retries + 1):
            if attempt:
                self.report.retries += 1
                self._stop_signal.sleep(min(pause, max(self._budget.seconds_left, 0.0)))
                self._budget.raise_if_late()
                pause *= 2
            try:
                if not self._client.connected:
                    self._connecting = True
                    self._client.connect()
                    self._connecting = False
                return self._client.get_info(format_name, batch)
            except RequestError as error:
                if not error.retryable or attempt == self._retry_policy.retries:
                    raise
        raise AssertionError("the loop ends with an answer or an error")


def format_snapshot_time(when: datetime) -> str:
    """Return a time in the format of snapshot files: ISO 8601, microseconds, UTC."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
