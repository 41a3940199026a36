"""Benchmark of slopes: how the time of the rules grows with their input; ``python -m bench.slopes [RULE ...]``.

The exchanges of each rule's test, the violating and the innocent one, happen n and 8n times in one association: one
message is given back, acknowledged and moved again and again, handles are opened and closed, Ends find nothing to end.
All rules look at all of them. 8 times the exchanges should take 8 times as long.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Measure, format_report, log_progress

sys.path += [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "support")]

EXCHANGES = 100
FACTOR = 8
MIN_SECONDS = 0.1  # shorter times say nothing
_SHIFT_US = 30_000_000
_TIMES = ("request_at", "response_at", "cancelled_at", "orphaned_at", "arrived_at", "sent_at")


def _repeated(story, count):
    """Return a story whose calls happen ``count`` times, one after the other."""
    from findings.exchanges import Story  # noqa: PLC0415 (of the tests)

    def later(row, number):
        times = {name: row[name] + number * _SHIFT_US for name in _TIMES if row.get(name) is not None}
        return (
            row | times | {"call_key": f"{row['call_key']} {number}", "call_id": row.get("call_id", 0) + number * 100}
        )

    def longer(row):
        return row | {
            name: row[name] + count * _SHIFT_US for name in ("last_packet_at", "closed_at") if row[name] is not None
        }

    found = Story([later(row, number) for number in range(count) for row in story.calls])
    found.others = [later(row, number) for number in range(count) for row in story.others]
    found.connections = [longer(row) for row in story.connections]
    found.other_connections = [longer(row) for row in story.other_connections]
    found.binds = story.binds
    return found


def _seconds(story):
    gc.collect()
    begin = time.process_time()
    story.broken()
    return time.process_time() - begin


def measure(exchanges: int = EXCHANGES, rules: Sequence[str] = ()) -> list[Measure]:
    """Measure the steepest growth over the exchanges of all rules, or some."""
    from findings.exchanges import Story  # noqa: PLC0415 (of the tests)
    from findings.test_rules import STORIES  # noqa: PLC0415

    grown: list[tuple[float, str]] = []
    for rule in rules or STORIES:
        log_progress(f"slopes: {rule}")
        for side, given in zip(("violating", "innocent"), STORIES[rule], strict=True):
            story = given if isinstance(given, Story) else Story(given)
            few, many = _repeated(story, exchanges), _repeated(story, FACTOR * exchanges)
            seconds = _seconds(many)
            if seconds >= MIN_SECONDS:
                grown.append((seconds / min(_seconds(few), _seconds(few)), f"{rule}, {side}"))
    steepest = sorted(grown, reverse=True)
    return [
        Measure(
            f"rules, {FACTOR}x as many: {name}",
            factor,
            "x",
            2 * FACTOR,
            1.3 * FACTOR,
            higher_is_better=False,
        )
        for factor, name in (steepest if rules else steepest[:3])
    ]


if __name__ == "__main__":
    print(format_report(measure(rules=sys.argv[1:])))
