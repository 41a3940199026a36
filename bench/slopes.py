"""Benchmark of slopes: how the time of each step grows with its input; ``python -m bench.slopes [RULE or STEP ...]``.

The exchanges of each rule's test, the violating and the innocent one, happen n, 2n, 4n and 8n times in one association:
one message is given back, acknowledged and moved again and again, handles are opened and closed, Ends find nothing to
end. All rules look at all of them. The reader, the joining of connections, gold and pages get as many packets, calls,
captures, reads or queues (``bench.slope_steps``). 8 times the input should take 8 times as long.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from bench.measure import Measure, format_report, log_progress
from bench.slope_steps import STEPS

EXCHANGES = 100
FACTORS = (1, 2, 4, 8)
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


def _growth(name: str, make: Callable[[int], Callable[[], object]], count: int) -> Measure | None:
    """Measure how much longer the largest input takes than the smallest; None if that takes no time."""
    took = []
    for factor in FACTORS:
        step = make(factor * count)
        took.append(min(_seconds(step) for _ in range(2 if factor in (1, FACTORS[-1]) else 1)))
    log_progress(f"slopes: {name}: {', '.join(f'{seconds:.2f}' for seconds in took)} s")
    if took[-1] < MIN_SECONDS:
        return None
    most = FACTORS[-1]
    growth = took[-1] / max(took[0], 1e-4)
    return Measure(f"{name}, {most}x as many", growth, "x", 2 * most, 1.3 * most, higher_is_better=False)


def _seconds(step: Callable[[], object]) -> float:
    gc.collect()
    begin = time.process_time()
    step()
    return time.process_time() - begin


def measure(names: Sequence[str] = ()) -> list[Measure]:
    """Measure the growth of all rules and steps, or of those named; of all rules and of the reader the steepest."""
    from findings.exchanges import Story  # noqa: PLC0415 (of the tests)
    from findings.test_rules import STORIES  # noqa: PLC0415

    found: dict[str, list[Measure]] = defaultdict(list)
    for rule in STORIES:
        for side, given in zip(("violating", "innocent"), STORIES[rule], strict=True):
            if not names or rule in names:
                story = given if isinstance(given, Story) else Story(given)
                grown = _growth(f"{rule}, {side}", lambda count: _repeated(story, count).broken, EXCHANGES)  # noqa: B023
                found["rules"] += [grown] if grown is not None else []
    for name, (count, make) in STEPS.items():
        if not names or name in names:
            grown = _growth(name, make, count)
            found[name.partition(":")[0]] += [grown] if grown is not None else []
    steepest = (sorted(group, key=lambda each: each.value, reverse=True) for group in found.values())
    return [each for group in steepest for each in (group if names else group[:3])]


if __name__ == "__main__":
    print(format_report(measure(sys.argv[1:])))
