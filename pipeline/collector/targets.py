"""Defines what to collect from a queue manager: its queues, properties, and the batches of properties."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pipeline.collector.client import ManagementAnswer, ServerAddress
from pipeline.collector.get_info_codec import MAX_PROPERTIES_PER_CALL
from pipeline.settings import CollectorConfig, DiscoverySources
from udfs.call_results import call_succeeded
from udfs.dcerpc.interfaces import QMMGMT_NAME
from udfs.properties.property_names import MACHINE_PROPERTY_NAMES, QUEUE_PROPERTY_NAMES
from udfs.queues.format_name_parser import FormatNameError, parse_format_name, to_format_name
from udfs.queues.normal_form import normalize_queue_name

ACTIVE_QUEUES_PROPERTY, PRIVATE_QUEUES_PROPERTY = 1, 2  # PROPID_MGMT_MSMQ_ACTIVEQUEUES, _PRIVATEQ
_LIST_PROPERTIES: Final[dict[DiscoverySources, int]] = {
    "active": ACTIVE_QUEUES_PROPERTY,
    "private": PRIVATE_QUEUES_PROPERTY,
}
_VT_STRING_VECTOR: Final = 0x101F
MACHINE_PROPERTIES: Final = tuple(sorted(MACHINE_PROPERTY_NAMES))
QUEUE_PROPERTIES: Final = tuple(sorted(QUEUE_PROPERTY_NAMES))


@dataclass(frozen=True, slots=True)
class CollectionTarget:
    """A queue manager to collect from, and the selection of its queues and properties.

    ``queues`` are always collected (format or path names). Queues found by ``discover`` are collected if a pattern of
    ``include`` and none of ``exclude`` matches their normal form. ``properties`` are numbers of queue properties.
    """

    name: str
    address: ServerAddress
    queues: tuple[str, ...] = ()
    discover: tuple[DiscoverySources, ...] = CollectorConfig.discover
    include: tuple[str, ...] = CollectorConfig.include
    exclude: tuple[str, ...] = CollectorConfig.exclude
    properties: tuple[int, ...] = QUEUE_PROPERTIES


def property_batches(properties: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the properties in batches of at most ``MAX_PROPERTIES_PER_CALL``."""
    for start in range(0, len(properties), MAX_PROPERTIES_PER_CALL):
        yield tuple(properties[start : start + MAX_PROPERTIES_PER_CALL])


def configured_queues(target: CollectionTarget) -> list[str]:
    """Return the format names of the explicitly configured queues, without duplicates."""
    return list(_unique_queues(map(to_format_name, target.queues)))


def validate_queues(target: CollectionTarget) -> None:
    """Raise FormatNameError if the name of a configured queue is invalid."""
    for name in configured_queues(target):
        parse_format_name(name)


def discovered_queues(target: CollectionTarget, machine: ManagementAnswer | None) -> list[str]:
    """Return the format names of selected queues from the machine's lists, without the configured ones.

    ``machine`` is the answer for ``MACHINE_PROPERTIES``; if it is None or failed, there are no queues. Names that are
    neither format names nor path names are ignored.
    """
    if machine is None or not call_succeeded(QMMGMT_NAME, machine.hresult):
        return []
    found: list[str] = []
    for kind in target.discover:
        vt, names = machine.values[MACHINE_PROPERTIES.index(_LIST_PROPERTIES[kind])]
        if vt == _VT_STRING_VECTOR and isinstance(names, list):
            found += [to_format_name(name) for name in names if isinstance(name, str) and name]
    configured = {normalize_queue_name(name) for name in configured_queues(target)}
    return [
        name
        for name in _unique_queues(found)
        if normalize_queue_name(name) not in configured and _is_selected(target, name)
    ]


def _is_selected(target: CollectionTarget, format_name: str) -> bool:
    try:
        parse_format_name(format_name)
    except FormatNameError:
        return False
    texts = {normalize_queue_name(format_name) or "", format_name.lower()}

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(text, pattern.lower()) for text in texts for pattern in patterns)

    return matches(target.include) and not matches(target.exclude)


def _unique_queues(names: Iterable[str]) -> Iterator[str]:
    """Yield each queue once by normal form: PRIVATEQ and ACTIVEQUEUES use different names for one queue."""
    seen: set[str | None] = set()
    for name in names:
        if (text := normalize_queue_name(name)) not in seen:
            seen.add(text)
            yield name
