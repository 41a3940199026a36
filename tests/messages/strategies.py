"""Strategies for message packets of all forms, intact and damaged."""

from hypothesis import strategies as st

from messages import building as b

PROTOCOLS = ("RemoteRead", "qm2qm", "binary_protocol")

u16, u32, u64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
octets = st.binary(max_size=24)
names = st.text(st.sampled_from("aZ1.\\$;:=,é漢😀\ud800\udc00\0/"), max_size=12)
direct = st.one_of(names, st.sampled_from(
    ["OS:h\\q", "TCP:10.0.0.1\\PRIVATE$\\Q", "DIRECT=OS:h\\q", "HTTP://h/msmq/q", "os:h\\q;Sub", ""]
))  # fmt: skip
guids = st.sampled_from([b.SOURCE, b.TARGET, b.ELSEWHERE, b.uuid.UUID(int=0)])


@st.composite
def queues(draw):
    out = []
    for allowed in ((0, 3, 5, 7, 7, 7), (0, 2, 3, 5, 6, 7), (0, 1, 2, 3, 4, 5, 6, 7)):
        said = {"name": draw(direct), "guid": draw(guids), "number": draw(u32)}
        out.append((draw(st.sampled_from(allowed)), said))
    return tuple(out)


senders = st.one_of(st.just(b""), octets, st.just(b.sid(21, 1, 2, 3)), st.just(b.SOURCE.bytes_le))
security = st.tuples(st.integers(0, 255), st.tuples(senders, octets, octets, octets, octets))
elements = st.lists(
    st.one_of(
        names.map(lambda text: (3, b.wide(text))),
        st.tuples(st.sampled_from([1, 6, 9]), guids.map(lambda guid: guid.bytes_le)),
        st.tuples(st.just(2), guids.map(lambda guid: guid.bytes_le + bytes(4))),
    ),
    max_size=3,
)
lists = st.builds(b.format_names, elements, st.sampled_from([4, 4, 1]))
addresses = st.one_of(st.none(), st.tuples(u16, st.sampled_from([0, 1, 6, 2, 256 + 1]), u32, st.binary(max_size=16)))
short = st.text(st.characters(codec="utf-16"), max_size=15)
tails = st.one_of(st.just(b""), octets, st.builds(
    b.trailing, subqueue=short, target=short, aborts=u32, moves=u32, moved=u32, dead_letter=st.none() | names,
    address=addresses, flags=st.sampled_from([0x12, 0x12, 0x12, 0x10, 0x02, 0x1A, 0]),
))  # fmt: skip
overlays = st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16), st.builds(
    b.overlay, st.sampled_from([0, 1, 6]), st.sampled_from([4, 16]), octets
))  # fmt: skip
compounds = st.one_of(
    octets.map(lambda data: (data, len(data) // 2, len(data) // 3)),
    octets.map(lambda data: (data, len(data), 0)),
    st.tuples(octets, st.integers(0, 12), st.integers(0, 12)),
)
rarely = [None, None, None, None]

packets = st.builds(
    b.Packet,
    body=octets,
    label=st.none() | names,
    extension=octets,
    flags=st.integers(0, 7),
    reach=st.one_of(st.just(b.NEVER), u32, st.just(b.SENT + 60)),
    receive=st.one_of(st.just(b.NEVER), u32),
    sent=st.one_of(st.just(b.SENT), st.integers(0, 50), u32),
    number=u32,
    source=guids,
    manager=overlays,
    user=st.sampled_from([0, 1 << 5, 2 << 5, 3 << 8, 1 << 24]),
    queues=queues(),
    connector=st.sampled_from([b"", bytes(range(16))]),
    transaction=st.none() | st.tuples(u32, u64, u32, u32),
    transaction_connector=st.sampled_from([b"", bytes(range(16))]),
    security=st.none() | security,
    acknowledge=st.integers(0, 255),
    kind=st.one_of(u16, st.sampled_from([0, 2, 0x4000, 0xC004])),
    correlation=st.one_of(st.just(bytes(20)), st.binary(min_size=20, max_size=20)),
    body_type=u32,
    tag=u32,
    allocation=st.none() | st.integers(0, 40),
    filler=st.sampled_from([b"", b"", bytes(3), bytes(8)]),
    algorithms=st.tuples(u32, u32, u32),
    debug=st.sampled_from([None, b"", bytes(range(16))]),
    envelope=st.sampled_from(rarely) | names,
    envelope_bytes=st.booleans(),
    compound=compounds,
    soap=st.none() | st.tuples(names, names),
    soap_unaligned=st.booleans(),
    lists=st.none() | st.tuples(lists, lists, lists, octets),
    session=st.sampled_from([None, None, bytes(range(16))]),
    packet_size=st.sampled_from([*rarely, *rarely, 0, 100, 2**32 - 1]),
    trailing=tails,
)


@st.composite
def mutated(draw):
    """Return a packet with some bytes changed, and possibly truncated."""
    raw = bytearray(draw(packets).bytes())
    for _ in range(draw(st.integers(0, 4))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw)


@st.composite
def cut_into_sections(draw):
    """Return a packet and its sections: often as a server makes them, sometimes invalid ones."""
    packet = draw(packets)
    raw = packet.bytes()
    kind = draw(st.sampled_from([0, 1, 3, 1, 3, 7]))
    at = draw(st.integers(0, len(raw)))
    left_out = draw(st.integers(0, min(40, len(raw) - at)))
    if kind == 1 and packet.envelope is None and draw(st.booleans()):  # as 3.1.4.7 has it
        body = packet.body_at()
        at = body + draw(st.integers(0, len(packet.body)))
        left_out = body + len(packet.body) - at
        gap = left_out + packet.padding() * (not packet.filler)
    else:
        gap = left_out
    if kind == 0:
        return raw, [(0, len(raw), len(raw) + draw(st.sampled_from([0, 0, 1])))]
    first, second = raw[:at], raw[at + gap :]
    sections = [(kind, len(first), len(first) + left_out)]
    if second or draw(st.booleans()):
        sections.append((draw(st.sampled_from([kind + 1, kind + 1, 5])), len(second), len(second)))
    return first + second, sections
