"""Names of machines for people: which names of an address or of a queue manager's GUID are shown, and how. No Spark.

The first source that has a name for it counts (``NameSource``). Of one source, a name is over where another one of the
same address or GUID was first seen after it was last seen. All others are in force and shown, the newest first.

An address has also the name of the GUID at it, and a GUID those of its addresses, where each is one name. What has
several, as a cloned GUID or an address behind NAT, does not lead from one to the other.

Names are for display only: keys, and the columns that name machines, have what gold calls them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from pipeline.text import with_name
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL
from udfs.keys import key

_MAX_NAMES: Final = 3  # that are shown of one address or GUID
_WORD: Final = re.compile(r"[^\s,;()\"]+")


class NameSource(IntEnum):
    """Where the name of a machine is from, in the order in which sources count."""

    DECLARED = 1  # the file of names.machines
    COLLECTOR = 2  # collector.machines, and what collectors called machines in snapshots: the names in gold
    SNAPSHOT = 3  # what queue managers report
    WIRE = 4  # the names with which queues were opened
    NAME_RESOLUTION = 5  # name resolution blocks of captures


class NameSighting(NamedTuple):
    """What a source shows together of an address, a GUID and a name, and when: microseconds, None where it has none."""

    source: NameSource
    address: str | None = None
    queue_manager_id: str | None = None
    name: str | None = None
    first_seen_us: int | None = None
    last_seen_us: int | None = None


DeclaredNames: TypeAlias = tuple[NameSighting, ...]
"""The names of the file of ``names.machines``."""


class MachineInfo(NamedTuple):
    """An address and a GUID of one machine, and its names; the empty text for what is not known."""

    address: str
    queue_manager_id: str
    name: str


class MachineNames:
    """The names of machines, by address and by GUID."""

    def __init__(self, sightings: Iterable[NameSighting]) -> None:
        self._seen = defaultdict[tuple[NameSource, str], list[NameSighting]](list)  # with a name
        self._at = defaultdict[str, list[NameSighting]](list)  # by address, with a GUID
        self._machines = set[str]()  # addresses and GUIDs; those of name resolution blocks alone are no machines
        self._ids = set[str]()
        self._found: dict[str, list[str]] = {}  # names in force, by identifier
        for seen in sightings:
            for identifier in filter(None, (seen.address, seen.queue_manager_id)):
                if seen.name:
                    self._seen[seen.source, identifier].append(seen)
                if seen.source is not NameSource.NAME_RESOLUTION:
                    self._machines.add(identifier)
            if seen.queue_manager_id:
                self._ids.add(seen.queue_manager_id)
                if seen.address:
                    self._at[seen.address].append(seen)

    def shown(self, identifier: str) -> str:
        """Return the name of an address or GUID, which stands beside it in brackets where the name does not decide.

        It does not where several names are in force, or another address or GUID has the same name, unless the two are
        known to be of one machine. A name of gold becomes the declared one of its addresses, with the name of gold
        beside it likewise. All else stays as it is.
        """
        if identifier in self._shown_by_gold_name:
            return self._shown_by_gold_name[identifier]
        names = self.names_of(identifier)
        if not names:
            return identifier
        others = self._identifiers_by_name[names[0].casefold()] - {identifier}
        is_alone = len(names) == 1 and others <= self._linked_with(identifier)
        return names[0] if is_alone else with_name(identifier, _listed(names))

    def in_text(self, text: str, queue: str | None = None) -> str:
        """Return a text with each of its words as ``shown``, also before a port; the name of a queue stays as it is."""
        if queue:
            return queue.join(map(self.in_text, text.split(queue)))
        return _WORD.sub(lambda word: self._shown_word(word[0]), text)

    def shown_in(self, text: str) -> dict[str, str]:
        """Return what is shown of the words of a text that have a name."""
        words = {self._identifier(word) for word in _WORD.findall(text)}
        return {word: shown for word in sorted(words) if (shown := self.shown(word)) != word}

    def _shown_word(self, word: str) -> str:
        identifier = self._identifier(word)
        return f"{self.shown(identifier)}{word[len(identifier) :]}"

    def _identifier(self, word: str) -> str:
        """Return what in a word has a name: it may have a port, a colon or a full stop behind it."""
        bare = word.rstrip(":.")
        before, _, port = bare.rpartition(":")
        return before if port.isdecimal() and self.shown(bare) == bare else bare

    def names_of(self, identifier: str) -> list[str]:
        """Return the names in force of an address or GUID: of the first source that has some, the newest first."""
        if identifier not in self._named:  # as most words of a text
            return []
        if identifier not in self._found:
            every = (self._names_by(source, identifier) for source in self._sources)
            self._found[identifier] = next((names for names in every if names), [])
        return self._found[identifier]

    def _names_by(self, source: NameSource, identifier: str) -> list[str]:
        if names := self._own_names(source, identifier):
            return names
        linked = (self._own_names(source, each) for each in sorted(self._linked_with(identifier)))
        return [*dict.fromkeys(names[0] for names in linked if len(names) == 1)]

    def _own_names(self, source: NameSource, identifier: str) -> list[str]:
        found = self._seen.get((source, identifier), ())
        return _in_force([(seen.name or "", seen) for seen in found]) if found else []

    def shown_by_identifier(self) -> dict[str, str]:
        """Return what is shown of all that has a name: addresses, GUIDs, and names of gold with a declared one."""
        shown = {each: self.shown(each) for each in sorted({*self._named, *self._shown_by_gold_name})}
        return {identifier: text for identifier, text in shown.items() if text != identifier}

    def machines(self) -> list[MachineInfo]:
        """Return all machines, sorted: each address with each GUID at it, and GUIDs of which no address is known."""
        found = []
        for address in self._machines - self._ids:
            for queue_manager_id in self._linked_with(address) or ("",):
                names = self.names_of(address) or self.names_of(queue_manager_id)
                found.append(MachineInfo(address, queue_manager_id, _listed(names)))
        found += [MachineInfo("", each, _listed(self.names_of(each))) for each in self._ids - self._linked.keys()]
        return sorted(found)

    def _linked_with(self, identifier: str) -> set[str]:
        return self._linked.get(identifier, set())

    @cached_property
    def _sources(self) -> list[NameSource]:
        """The sources that have a name, in their order."""
        known = {source for source, _ in self._seen}
        return [source for source in NameSource if source in known]

    @cached_property
    def _named(self) -> set[str]:
        """The addresses and GUIDs that can have a name: their own, or that of what they are linked with."""
        return {identifier for _, identifier in self._seen} | self._linked.keys()

    @cached_property
    def _linked(self) -> dict[str, set[str]]:
        """Addresses and GUIDs of one machine, both ways."""
        linked = defaultdict[str, set[str]](set)
        for address, sightings in self._at.items():
            for queue_manager_id in _in_force([(seen.queue_manager_id or "", seen) for seen in sightings]):
                linked[address].add(queue_manager_id)
                linked[queue_manager_id].add(address)
        return dict(linked)

    @cached_property
    def _identifiers_by_name(self) -> defaultdict[str, set[str]]:
        found = defaultdict[str, set[str]](set)
        for identifier in self._named:
            for name in self.names_of(identifier):
                found[name.casefold()].add(identifier)
        return found

    @cached_property
    def _shown_by_gold_name(self) -> dict[str, str]:
        """What is shown of the names in gold whose addresses have one declared name, which is another one."""
        addresses = defaultdict[str, set[str]](set)
        for (source, address), sightings in self._seen.items():
            for seen in sightings if source is NameSource.COLLECTOR else ():
                addresses[seen.name or ""].add(address)
        shown = {}
        for gold_name, own in addresses.items():
            declared = {name for address in own for name in self._names_by(NameSource.DECLARED, address)}
            if len(declared) == 1 and declared != {gold_name}:
                (name,) = declared
                others = self._identifiers_by_name[name.casefold()] - own.union(*map(self._linked_with, own))
                shown[gold_name] = with_name(gold_name, name) if others else name
        return shown


def names_digest(names: DeclaredNames) -> str:
    """Return a text that differs for other names, and holds none of them."""
    return key(*(str(part) for seen in sorted(set(names), key=str) for part in seen))


def _in_force(values: Sequence[tuple[str, NameSighting]]) -> list[str]:
    """Return the values that no other one has followed, the one that was seen last first; case makes no difference."""
    spans: dict[str, tuple[int, int, str]] = {}
    for value, seen in values:
        first = BEFORE_ALL if seen.first_seen_us is None else seen.first_seen_us
        last = AFTER_ALL if seen.last_seen_us is None else seen.last_seen_us
        known = spans.get(value.casefold(), (first, last, value))
        spans[value.casefold()] = (min(first, known[0]), max(last, known[1]), min(value, known[2]))
    newest = max((first for first, _, _ in spans.values()), default=0)
    return [value for _, last, value in sorted(spans.values(), key=lambda each: (-each[1], each[2])) if last >= newest]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"
