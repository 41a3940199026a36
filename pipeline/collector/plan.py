"""What is asked of a queue manager: which queues, which properties, in which batches."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pipeline.collector.client import Answer, Place
from pipeline.collector.get_info import MOST_PROPERTIES
from udfs.codes import FAILURE
from udfs.properties.names import MACHINE, QUEUE
from udfs.queues.format_name_parser import FormatNameError, format_name_of, queue_format
from udfs.queues.normal_form import normal_text

Discovery = Literal["active", "private"]
ACTIVE_QUEUES, PRIVATE_QUEUES = 1, 2  # PROPID_MGMT_MSMQ_ACTIVEQUEUES, _PRIVATEQ
_LISTS: Final[dict[Discovery, int]] = {"active": ACTIVE_QUEUES, "private": PRIVATE_QUEUES}
_STRINGS: Final = 0x101F
MACHINE_PROPERTIES: Final = tuple(sorted(MACHINE))
QUEUE_PROPERTIES: Final = tuple(sorted(QUEUE))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted of one queue manager.

    ``queues`` are asked about always (format or path names); discovered ones where a pattern of ``include`` and none of
    ``exclude`` fits their normal form. ``properties`` are numbers of queue properties.
    """

    name: str
    place: Place
    queues: tuple[str, ...] = ()
    discover: tuple[Discovery, ...] = ("active", "private")
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    properties: tuple[int, ...] = QUEUE_PROPERTIES


def batches(properties: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the properties in questions of at most ``MOST_PROPERTIES``."""
    for start in range(0, len(properties), MOST_PROPERTIES):
        yield tuple(properties[start : start + MOST_PROPERTIES])


def configured(wanted: Wanted) -> list[str]:
    """Return the format names of the queues that are named, each once."""
    return list(_once(map(format_name_of, wanted.queues)))


def check(wanted: Wanted) -> None:
    """Raise FormatNameError for a configured queue that cannot be asked about."""
    for name in configured(wanted):
        queue_format(name)


def discovered(wanted: Wanted, machine: Answer | None) -> list[str]:
    """Return the format names of queues that the machine's own answer names, filtered, each queue once.

    ``machine`` answers ``MACHINE_PROPERTIES``; None or a failed one names none. A name that is no format name and no
    path name is passed over: a queue manager wrote it, and there is nothing to ask by it.
    """
    if machine is None or machine.hresult & FAILURE:
        return []
    found: list[str] = []
    for kind in wanted.discover:
        vt, names = machine.values[MACHINE_PROPERTIES.index(_LISTS[kind])]
        if vt == _STRINGS and isinstance(names, list):
            found += [format_name_of(name) for name in names if isinstance(name, str) and name]
    named = {normal_text(name) for name in configured(wanted)}
    return [name for name in _once(found) if normal_text(name) not in named and _fits(wanted, name)]


def _fits(wanted: Wanted, format_name: str) -> bool:
    try:
        queue_format(format_name)
    except FormatNameError:
        return False
    texts = {normal_text(format_name) or "", format_name.lower()}

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(text, pattern.lower()) for text in texts for pattern in patterns)

    return matches(wanted.include) and not matches(wanted.exclude)


def _once(names: Iterable[str]) -> Iterator[str]:
    """Yield names whose normal form did not come before: PRIVATEQ and ACTIVEQUEUES name queues differently."""
    seen: set[str | None] = set()
    for name in names:
        if (text := normal_text(name)) not in seen:
            seen.add(text)
            yield name
