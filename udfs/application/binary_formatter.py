"""Streams of .NET's binary formatter, [MS-NRBF]: which records there are, and of which class the root is.

Nothing is instantiated: texts and numbers of objects are kept as they are written, and references as numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from udfs.application.application_message import ByteReader, TooLargeError, cut_to_limit
from udfs.errors import DecodeError, MalformedError, UnsupportedError

MAX_RECORDS: Final = 4096  # that are read
_MAX_VALUES: Final = 1 << 16  # members and items that are read
_MAX_MEMBERS: Final = 1000  # of one class

RECORD_NAMES: Final = {
    0: "SerializedStreamHeader", 1: "ClassWithId", 2: "SystemClassWithMembers", 3: "ClassWithMembers",
    4: "SystemClassWithMembersAndTypes", 5: "ClassWithMembersAndTypes", 6: "BinaryObjectString", 7: "BinaryArray",
    8: "MemberPrimitiveTyped", 9: "MemberReference", 10: "ObjectNull", 11: "MessageEnd", 12: "BinaryLibrary",
    13: "ObjectNullMultiple256", 14: "ObjectNullMultiple", 15: "ArraySinglePrimitive", 16: "ArraySingleObject",
    17: "ArraySingleString", 21: "MethodCall", 22: "MethodReturn",
}  # fmt: skip
_HEADER, _CLASS_WITH_ID, _STRING, _BINARY_ARRAY, _PRIMITIVE, _REFERENCE, _NULL = 0, 1, 6, 7, 8, 9, 10
_END, _LIBRARY, _NULLS_256, _NULLS, _PRIMITIVES, _OBJECTS, _STRINGS = 11, 12, 13, 14, 15, 16, 17
_CLASSES: Final = {2: (True, False), 3: (False, False), 4: (True, True), 5: (False, True)}  # of the system; with types
_HEADER_BYTES: Final = 17
_VERSION: Final = b"\1\0\0\0\0\0\0\0"  # 1.0

_PRIMITIVE_SIZES: Final = {1: 1, 2: 1, 6: 8, 7: 2, 8: 4, 9: 8, 10: 1, 11: 4, 12: 8, 13: 8, 14: 2, 15: 4, 16: 8, 17: 0}
_PRIMITIVE_NAMES: Final = {
    1: "Boolean", 2: "Byte", 3: "Char", 5: "Decimal", 6: "Double", 7: "Int16", 8: "Int32", 9: "Int64", 10: "SByte",
    11: "Single", 12: "TimeSpan", 13: "DateTime", 14: "UInt16", 15: "UInt32", 16: "UInt64", 18: "String",
}  # fmt: skip
_SIGNED: Final = frozenset({7, 8, 9, 10})
_UNSIGNED: Final = frozenset({1, 2, 14, 15, 16})
_CHAR, _DECIMAL, _TEXT = 3, 5, 18  # primitive types whose values have no fixed size
_LOWER_BOUNDS: Final = frozenset({3, 4, 5})  # kinds of arrays that have them


class Reference(NamedTuple):
    """A value that is an object elsewhere in the stream."""

    object_id: int


@dataclass(frozen=True, slots=True)
class SerializedObject:
    """An object of the stream: its class, None for a text, and the members that are texts, numbers or references."""

    class_name: str | None
    library: str | None = None
    members: dict[str, Any] = field(default_factory=dict)
    text: str | None = None


@dataclass(slots=True)
class SerializedStream:
    """What a stream has, as far as it could be read. ``records`` are names and offsets."""

    root_class: str | None = None
    root_library: str | None = None
    records: list[tuple[str, int]] = field(default_factory=list)
    objects: dict[int, SerializedObject] = field(default_factory=dict)
    error: DecodeError | None = None

    def resolve(self, value: Any) -> Any:  # noqa: ANN401 - of any type
        """Return the text of a reference to a text or to an object with one text, such as a URI; else the value."""
        if not isinstance(value, Reference):
            return value
        found = self.objects.get(value.object_id)
        if found is None or found.class_name is None:
            return found and found.text
        texts = [each for each in map(self._text, found.members.values()) if each is not None]
        return texts[0] if len(texts) == 1 else None

    def _text(self, value: Any) -> str | None:  # noqa: ANN401 - of any type
        found = self.objects.get(value.object_id) if isinstance(value, Reference) else None
        return found.text if found else value if isinstance(value, str) else None


def is_binary_formatter(data: bytes) -> bool:
    """Whether bytes begin with the header of a stream of version 1.0."""
    return data[:1] == b"\0" and data[9:_HEADER_BYTES] == _VERSION


def read_binary_formatter(data: bytes) -> SerializedStream:
    """Read the records of a stream."""
    data, too_large = cut_to_limit(data)
    reader = _StreamReader(ByteReader(data))
    try:
        reader.read()
    except DecodeError as error:
        reader.stream.error = too_large or error
    return reader.stream


class _ClassLayout(NamedTuple):
    """Names and types of a class's members; a type is a primitive one, or 0 for a record."""

    name: str
    library: str | None
    members: tuple[str, ...]
    types: tuple[int, ...]


@dataclass(slots=True)
class _Frame:
    """Values that are still to come: the members of an object, or the items of an array (no layout)."""

    missing: int
    members: dict[str, Any]
    layout: _ClassLayout | None = None

    def next_type(self) -> int:
        return self.layout.types[-self.missing] if self.layout else 0

    def put(self, value: Any, count: int = 1) -> None:  # noqa: ANN401 - of any type
        if self.layout and isinstance(value, (str, int, Reference)):
            self.members[self.layout.members[-self.missing]] = value
        self.missing -= count


class _StreamReader:
    def __init__(self, reader: ByteReader) -> None:
        self.reader = reader
        self.stream = SerializedStream()
        self._libraries: dict[int, str] = {}
        self._layouts: dict[int, _ClassLayout] = {}
        self._frames: list[_Frame] = []
        self._root_id = 0
        self._values = 0

    def read(self) -> None:
        if not is_binary_formatter(self.reader.data) and len(self.reader.data) >= _HEADER_BYTES:
            raise MalformedError(RECORD_NAMES[_HEADER], 0)
        while True:
            while self._frames and self._frames[-1].missing <= 0:
                self._frames.pop()
            kind = self._frames[-1].next_type() if self._frames else 0
            if kind:
                self._count_value()
                self._put(self._primitive(kind))
            elif self._read_record() == _END:
                return

    def _read_record(self) -> int:
        at = self.reader.at
        kind = self.reader.number(1, "RecordTypeEnum")
        if kind not in RECORD_NAMES:
            raise MalformedError("RecordTypeEnum", at)
        name = RECORD_NAMES[kind]
        if len(self.stream.records) == MAX_RECORDS:
            raise TooLargeError("records", at)
        self.stream.records.append((name, at))
        if kind == _HEADER:
            self._root_id = self._int(name)
            self.reader.take(12, name)
        elif kind == _LIBRARY:
            library_id = self._int(name)
            self._libraries[library_id] = self.reader.text(name)
        elif kind in _CLASSES:
            self._read_class(name, *_CLASSES[kind])
        elif kind == _CLASS_WITH_ID:
            object_id, layout = self._int(name), self._layouts.get(self._int(name))
            if layout is None:
                raise MalformedError(f"{name}.MetadataId", at)
            self._begin_object(object_id, layout)
        elif kind == _STRING:
            object_id = self._int(name)
            self._define(object_id, SerializedObject(None, text=self.reader.text(name)), "System.String")
            self._put(Reference(object_id))
        elif kind in (_BINARY_ARRAY, _PRIMITIVES, _OBJECTS, _STRINGS):
            self._read_array(kind, name)
        elif kind == _PRIMITIVE:
            self._put(self._primitive(self.reader.number(1, name)))
        elif kind == _REFERENCE:
            self._put(Reference(self._int(name)))
        elif kind == _NULL:
            self._put(None)
        elif kind in (_NULLS_256, _NULLS):
            self._put(None, self.reader.number(1, name) if kind == _NULLS_256 else self._count(name))
        elif kind != _END:
            raise UnsupportedError(name, at)
        return kind

    def _read_class(self, record: str, is_system: bool, has_types: bool) -> None:  # noqa: FBT001 - of one table
        object_id, name = self._int(record), self.reader.text(f"{record}.Name")
        count = self._count(f"{record}.MemberCount")
        if count > _MAX_MEMBERS:
            raise TooLargeError(f"{record}.MemberCount", self.reader.at)
        members = tuple(self.reader.texts(count, f"{record}.MemberNames"))
        types = (0,) * count
        if has_types:
            kinds = self.reader.take(count, f"{record}.BinaryTypeEnums")
            types = tuple(self._type(kind) for kind in kinds)
        library = None if is_system else self._libraries.get(self._int(f"{record}.LibraryId"))
        layout = _ClassLayout(name, library, members, types)
        self._layouts[object_id] = layout
        self._begin_object(object_id, layout)

    def _type(self, kind: int) -> int:
        """Read what follows a BinaryTypeEnumeration; return the primitive type of its values, or 0 for records."""
        name = "AdditionalInfos"
        if kind == 0:
            return self.reader.number(1, name)
        if kind == 7:
            self.reader.take(1, name)
        elif kind in (3, 4):
            self.reader.text(name)
            self.reader.take(4 * (kind == 4), name)
        elif kind > 7:
            raise MalformedError("BinaryTypeEnum", self.reader.at)
        return 0

    def _read_array(self, kind: int, name: str) -> None:
        object_id = self._int(name)
        item, class_name = 0, {_OBJECTS: "System.Object[]", _STRINGS: "System.String[]"}.get(kind)
        if kind == _BINARY_ARRAY:
            count, item, class_name = self._binary_array(name)
        else:
            count = self._count(name)
            if kind == _PRIMITIVES:
                item = self.reader.number(1, name)
                class_name = f"{_primitive_class(item)}[]"
        self._define(object_id, SerializedObject(class_name), class_name)
        self._put(Reference(object_id))
        if item in _PRIMITIVE_SIZES:
            self.reader.take(count * _PRIMITIVE_SIZES[item], name)
        elif item:
            for _ in range(count):
                self._count_value()
                self._primitive(item)
        else:
            self._frames.append(_Frame(count, {}))

    def _binary_array(self, name: str) -> tuple[int, int, str]:
        """Return the number of items, their primitive type or 0, and the array's class."""
        shape, rank = self.reader.number(1, name), self._count(name)
        if rank > 32:  # .NET allows no more
            raise MalformedError(f"{name}.Rank", self.reader.at)
        count = 1
        for _ in range(rank):
            count *= self._count(name)
        if shape in _LOWER_BOUNDS:
            self.reader.take(4 * rank, name)
        kind, at = self.reader.number(1, name), self.reader.at
        item = self._type(kind)
        named = ByteReader(self.reader.data, at).text(name) if kind in (3, 4) else None
        known = {1: "System.String", 2: "System.Object", 5: "System.Object[]", 6: "System.String[]"}
        return count, item, f"{named or known.get(kind) or _primitive_class(item)}[]"

    def _begin_object(self, object_id: int, layout: _ClassLayout) -> None:
        found = SerializedObject(layout.name, layout.library)
        self._define(object_id, found, layout.name)
        self._put(Reference(object_id))
        self._frames.append(_Frame(len(layout.members), found.members, layout))

    def _define(self, object_id: int, found: SerializedObject, class_name: str | None) -> None:
        if object_id == self._root_id and self.stream.root_class is None:
            self.stream.root_class, self.stream.root_library = class_name, found.library
        self.stream.objects.setdefault(object_id, found)

    def _put(self, value: Any, count: int = 1) -> None:  # noqa: ANN401 - of any type
        if self._frames:
            self._frames[-1].put(value, count)

    def _primitive(self, kind: int) -> Any:  # noqa: ANN401 - a number or a text
        name = "MemberPrimitive"
        if kind in _PRIMITIVE_SIZES:
            if kind in _SIGNED or kind in _UNSIGNED:
                return self.reader.number(_PRIMITIVE_SIZES[kind], name, signed=kind in _SIGNED)
            self.reader.take(_PRIMITIVE_SIZES[kind], name)
            return None
        if kind in (_DECIMAL, _TEXT):
            return self.reader.text(name)
        if kind == _CHAR:
            first = self.reader.number(1, name)
            self.reader.take(0 if first < 0xC0 else 1 if first < 0xE0 else 2 if first < 0xF0 else 3, name)
            return None
        raise MalformedError("PrimitiveTypeEnum", self.reader.at)

    def _count_value(self) -> None:
        self._values += 1
        if self._values > _MAX_VALUES:
            raise TooLargeError("values", self.reader.at)

    def _int(self, name: str) -> int:
        return self.reader.number(4, name, signed=True)

    def _count(self, name: str) -> int:
        at, count = self.reader.at, self._int(name)
        if count < 0:
            raise MalformedError(name, at)
        return count


def _primitive_class(kind: int) -> str:
    return f"System.{_PRIMITIVE_NAMES.get(kind, 'Object')}"
