"""Encode values of the test peer's codecs (``peer.ndr``) with impacket's NDR engine.

That gives stubs for every method that share no code with the decoders, and checks the peer's codecs. Workarounds for
the engine's defects (rpc-interfaces.md section 3.7): each arm of a union is a structure of its own, with explicit
alignment and padding (I1 to I5); a top-level array of PROPVARIANT is a structure of them (I6). Encoding only (I7),
little-endian only.
"""

from functools import cache

from impacket.dcerpc.v5.ndr import (
    NDRCALL,
    NDRPOINTER,
    NDRPOINTERNULL,
    NDRSTRUCT,
    NDRUHYPER,
    NDRULONG,
    NDRUSHORT,
    NDRUSMALL,
    NDRUniConformantArray,
    NDRUniConformantVaryingArray,
)

from peer import idl, ndr
from stubs import buffers

_NUMBERS = {1: NDRUSMALL, 2: NDRUSHORT, 4: NDRULONG, 8: NDRUHYPER}


def _struct(members, align):
    """Return an impacket structure of (name, class or format) with the given alignment."""
    name = "Struct" + "_".join(str(getattr(kind, "__name__", kind)) for _, kind in members)
    body = {"structure": tuple(members), "getAlignment": lambda _: align}
    return type(name, (NDRSTRUCT,), body)


@cache
def _fixed(size, align):
    return _struct([("Data", f"{size}s=b''")], align)


@cache
def _array(item, varying):
    base = NDRUniConformantVaryingArray if varying else NDRUniConformantArray
    return type(f"Array{item if isinstance(item, str) else item.__name__}", (base,), {"item": item})


@cache
def _pointer(kind):
    return type(f"P{kind.__name__}", (NDRPOINTER,), {"referent": (("Data", kind),)})


def _null(kind, ndr64):
    """Return a NULL pointer, for which impacket has a class of its own."""
    return kind, NDRPOINTERNULL(isNDR64=ndr64)


def instance(codec, value, ndr64):
    """Return impacket's (class, object) for a value of a codec; octets and UTF-16 units are arrays."""
    return _MAKE[type(codec)](codec, value, ndr64)


def _made(kind, ndr64, **fields):
    made = kind(isNDR64=ndr64)
    for name, value in fields.items():
        made.fields[name] = value
    return kind, made


def _number(codec, value, ndr64):
    kind = _NUMBERS[codec.alignment(ndr64)]
    return _made(kind, ndr64, Data=value)


def _octets(raw, align, ndr64):
    return _made(_fixed(len(raw), align), ndr64, Data=raw)


def _members(parts, align, ndr64):
    """Return a structure of (name, (class, object)) with the padding at its end that NDR64 has (N7, defect I3)."""
    kind = _struct([(name, each[0]) for name, each in parts], align)
    return _made(kind, ndr64, **{name: each[1] for name, each in parts})


class _Padded:
    """Collects the members of a structure with their offsets, and adds padding that impacket leaves out as members."""

    def __init__(self, ndr64):
        self.ndr64, self.parts, self.at = ndr64, [], 0

    def add(self, name, made, size, align):
        self.pad(align)
        self.parts.append((name, made))
        self.at += size
        return self

    def pad(self, align):
        if gap := -self.at % align:
            self.parts.append((f"pad{self.at}", _octets(bytes(gap), 1, self.ndr64)))
            self.at += gap
        return self

    def made(self, align):
        if self.ndr64:
            self.pad(align)
        return _members(self.parts, align, self.ndr64)


def _size(codec, ndr64, value=None):
    """Return the size of a codec in place, in octets, from an aligned position; a union needs the value."""
    sized = {ndr.Integer: lambda: codec.size, ndr.Ranged: lambda: 4, ndr.Enum: lambda: codec.alignment(ndr64)}
    sized |= {ndr.Octets: lambda: codec.size, buffers.Aligned: lambda: codec.size, ndr.Guid: lambda: 16}
    sized |= {ndr.ContextHandle: lambda: 20, ndr.Pointer: lambda: 8 if ndr64 else 4}
    sized |= {idl._Blob: lambda: 16 if ndr64 else 8}
    if isinstance(codec, buffers.Arm):
        size = _size(codec.arms[value[0]], ndr64)
        return 16 + size + -size % 8 if ndr64 else 8 + size
    if isinstance(codec, ndr.Struct):
        at = 0
        for name, member in codec.members:
            at += -at % member.alignment(ndr64) + _size(member, ndr64, value and value[name])
        return at + (-at % codec.alignment(ndr64) if ndr64 else 0)
    return sized[type(codec)]()


def _structure(codec, value, ndr64):
    made = _Padded(ndr64)
    for name, member in codec.members:
        size = _size(member, ndr64, value[name])
        made.add(name, instance(member, value[name], ndr64), size, member.alignment(ndr64))
    return made.made(codec.alignment(ndr64))


def _transfer_arm(codec, value, ndr64):
    kind, members = value
    align = codec.alignment(ndr64)
    made = _Padded(ndr64)
    for name in ("uTransferType", "tag"):
        made.add(name, _made(NDRULONG, ndr64, Data=kind), 4, align).pad(align)
    arm = codec.arms[kind]
    size = _size(arm, ndr64)
    return made.add("arm", instance(arm, members, ndr64), size, align).made(align)


def _queue_format(codec, value, ndr64):
    align = codec.alignment(ndr64)
    made = _Padded(ndr64)
    for name, number, size in (("m_qft", value.kind, 1), ("m_suffix", value.suffix, 1), ("m_reserved", 0, 2)):
        made.add(name, _made(_NUMBERS[size], ndr64, Data=number), size, size)
    made.add("tag", _made(NDRUSMALL, ndr64, Data=value.kind), 1, align if ndr64 else 1)
    if ndr64:
        made.pad(8)
    arm = idl._ARMS[value.kind]
    if arm is not None:
        made.add("arm", instance(arm, value.value, ndr64), _size(arm, ndr64), arm.alignment(ndr64))
    return made.made(align)


def _variant(codec, value, ndr64):
    made = _Padded(ndr64)
    for name, number, size in (("vt", value.vt, 2), ("r1", 0, 1), ("r2", 0, 1), ("r3", 0, 4), ("tag", value.vt, 2)):
        made.add(name, _made(_NUMBERS[size], ndr64, Data=number), size, size)
    if ndr64:
        made.pad(8)
    arm = idl.variant_arm(value.vt)
    if arm is not None:
        made.add("arm", instance(arm, value.value, ndr64), _size(arm, ndr64), arm.alignment(ndr64))
    return made.made(8)


def _blob(codec, value, ndr64):
    made = _Padded(ndr64).add("count", _made(NDRULONG, ndr64, Data=len(value)), 4, 4)
    word = 8 if ndr64 else 4
    return made.add("p", instance(codec.pointer, value if len(value) else None, ndr64), word, word).made(word)


def _managed(codec, value, ndr64):
    align = codec.alignment(ndr64)
    kind = _NUMBERS[ndr.ENUM.alignment(ndr64)]
    size = ndr.ENUM.alignment(ndr64)
    made = _Padded(ndr64).add("type", _made(kind, ndr64, Data=value["type"]), size, size)
    made.add("tag", _made(kind, ndr64, Data=value["type"]), size, align if ndr64 else size).pad(align)
    if value["type"] == 2:
        made.add("arm", instance(codec.arm, value["queue"], ndr64), align, align)
    else:
        made.add("arm", _made(NDRULONG, ndr64, Data=0), 4, 4)
    return made.made(align)


def _pointed(codec, value, ndr64):
    if value is None:
        return _null(NDRPOINTERNULL, ndr64)
    target, made = instance(codec.target, value, ndr64)
    kind = _pointer(target)
    box = kind(isNDR64=ndr64)
    box.fields["Data"] = made
    return kind, box


def _items(item, values, varying, ndr64):
    kind = _array(item, varying)
    made = kind(isNDR64=ndr64)
    made.fields["Data"] = values
    if varying:
        made.fields["ActualCount"] = len(values)
    return kind, made


def _counted(codec, value, ndr64):
    made = [instance(codec.element, each, ndr64) for each in value]
    kinds = [kind for kind, _ in made]
    return _items(kinds[0] if kinds else NDRULONG, [each for _, each in made], False, ndr64)


def _single_octets(codec, value, ndr64, *, varying=False):
    varying = varying or isinstance(codec, ndr.VaryingOctets)
    return _items("c", [value[at : at + 1] for at in range(len(value))], varying, ndr64)


def _units(codec, value, ndr64):
    raw = (value + "\0").encode("utf-16-le") if isinstance(value, str) else value
    return _items("<H", [int.from_bytes(raw[at : at + 2], "little") for at in range(0, len(raw), 2)], True, ndr64)


def _partly_sent(codec, value, ndr64):
    room, sent = value
    kind, made = _single_octets(codec, sent, ndr64, varying=True)
    made.fields["MaximumCount"] = room
    return kind, made


def _zeros(codec, _, ndr64):
    return _octets(bytes(448 if ndr64 else 228), codec.alignment(ndr64), ndr64)


_MAKE = {
    ndr.Integer: _number, ndr.Ranged: _number, ndr.Enum: _number,
    ndr.Octets: lambda _, value, ndr64: _octets(value, 1, ndr64),
    buffers.Aligned: lambda _, value, ndr64: _octets(value, 4, ndr64),
    ndr.Guid: lambda _, value, ndr64: _octets(value.bytes_le, 4, ndr64),
    ndr.ContextHandle: lambda _, value, ndr64: _octets(value, 4, ndr64),
    ndr.Struct: _structure, ndr.Pointer: _pointed,
    ndr.Boxed: lambda codec, value, ndr64: instance(codec.inner, value[0], ndr64),
    ndr.Counted: _counted, ndr.CountedOctets: _single_octets, ndr.VaryingOctets: _single_octets, ndr.Text: _units,
    idl.ZeroTransferBuffer: _zeros, idl.QueueFormatCodec: _queue_format, idl.VariantCodec: _variant, idl._Blob: _blob,
    idl.MgmtObjectCodec: _managed,
    buffers.VaryingUnits: _units, buffers.PartlySent: _partly_sent, buffers.Arm: _transfer_arm,
}  # fmt: skip


def stub(fields, values, *, ndr64):
    """Return the stub that impacket encodes from parameters (name, codec) and their values."""
    made = []
    for name, codec in fields:
        if isinstance(codec, ndr.Counted) and codec.element.alignment(ndr64) == 8 and not ndr64:  # defect I6
            made.append((f"{name} count", *_made(NDRULONG, ndr64, Data=len(values[name]))))
            parts = [(f"{name}{at}", instance(codec.element, each, ndr64)) for at, each in enumerate(values[name])]
            if parts:
                made.append((name, *_members(parts, 8, ndr64)))
        else:
            made.append((name, *instance(codec, values[name], ndr64)))
    call = type("Call", (NDRCALL,), {"structure": tuple((name, kind) for name, kind, _ in made)})(isNDR64=ndr64)
    for name, kind, each in made:
        call.fields[name] = each
        if issubclass(kind, NDRPOINTER) and kind is not NDRPOINTERNULL:  # at top level the pointee follows at once
            call.fields[name] = top = kind(isNDR64=ndr64, topLevel=True)
            top.fields["Data"] = each.fields["Data"]
    return call.getData()
