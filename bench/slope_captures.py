"""Captures for the benchmark of slopes (``bench.slopes``): ``count`` of what the name of a function says."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from bench.traffic import ACK, EPOCH_US, FIN, NDR, PCAP_HEADER, PUSH, REMOTE_READ, SYN, build_pdu, pcap_record

_CLIENT_ISN, _SERVER_ISN = 1_000, 500_000
_PORT: Final = 49_000
_SEGMENT_BYTES: Final = 1_400
Stream = Iterable[tuple[bool, bytes]]  # what is sent, in order: whether by the client


def _ip(payload: bytes, source: int, target: int, *, protocol: int = 6, ident: int = 0, fragment: int = 0) -> bytes:
    head = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(payload), ident, fragment, 64, protocol, 0, source, target)
    return bytes(12) + b"\x08\x00" + head + payload


def _frame(
    sequence: int, acknowledgement: int, flags: int, data: bytes = b"", *, from_client: bool = True, port: int = _PORT,
    client: int = 0x0A010001,
) -> bytes:  # fmt: skip
    ports = (port, 2103) if from_client else (2103, port)
    numbers = sequence & 0xFFFFFFFF, acknowledgement & 0xFFFFFFFF
    tcp = struct.pack(">HHIIBBHHH", *ports, *numbers, 0x50, flags, 8192, 0, 0) + data
    return _ip(tcp, *((client, 0x0A020001) if from_client else (0x0A020001, client)))


def _pcap(frames: Iterable[bytes]) -> bytes:
    records = (pcap_record(EPOCH_US + number * 10, frame) for number, frame in enumerate(frames))
    return b"".join([PCAP_HEADER, *records])


def _conversation(stream: Stream, *, opened: bool = True, port: int = _PORT, isn: int = _CLIENT_ISN) -> Iterator[bytes]:
    sent = {True: isn + 1, False: _SERVER_ISN + 1}
    if opened:
        yield _frame(isn, 0, SYN, port=port)
        yield _frame(_SERVER_ISN, isn + 1, SYN | ACK, from_client=False, port=port)
        yield _frame(isn + 1, _SERVER_ISN + 1, ACK, port=port)
    for from_client, data in stream:
        for at in range(0, len(data), _SEGMENT_BYTES):
            piece = data[at : at + _SEGMENT_BYTES]
            yield _frame(
                sent[from_client], sent[not from_client], ACK | PUSH, piece, from_client=from_client, port=port
            )
            sent[from_client] += len(piece)


def _bind(call_id: int, contexts: Iterable[int] = (0,), *, ptype: int = 11, token: bytes = b"") -> bytes:
    items = [struct.pack("<HBB", number, 1, 0) + REMOTE_READ + NDR for number in contexts]
    body = struct.pack("<HHIBBH", 5840, 5840, 0, len(items), 0, 0) + b"".join(items)
    return build_pdu(ptype, call_id, body, token=token)


def _bind_answer(call_id: int, count: int = 1, *, ptype: int = 12, token: bytes = b"") -> bytes:
    head = struct.pack("<HHIH", 5840, 5840, 1, 5) + b"2103\0\0"
    head += bytes(-len(head) % 4) + struct.pack("<BBH", count, 0, 0)
    return build_pdu(ptype, call_id, head + (bytes(4) + NDR) * count, token=token)


def _request(call_id: int, *, context: int = 0, opnum: int = 7, size: int = 56, flags: int = 3) -> bytes:
    return build_pdu(0, call_id, struct.pack("<IHH", size, context, opnum) + bytes(size), flags=flags)


def _response(call_id: int, *, context: int = 0, size: int = 32, flags: int = 3) -> bytes:
    return build_pdu(2, call_id, struct.pack("<IHH", size, context, 0) + bytes(size), flags=flags)


def _bound(rest: Stream) -> Iterator[tuple[bool, bytes]]:
    yield True, _bind(1)
    yield False, _bind_answer(1)
    yield from rest


def _exchange(call_id: int, **more: int) -> Stream:
    return [(True, _request(call_id, **more)), (False, _response(call_id, **more))]


def calls(count: int) -> bytes:
    """Calls of one connection."""
    return _pcap(_conversation(_bound(each for number in range(count) for each in _exchange(number + 2))))


def calls_of_one_id(count: int) -> bytes:
    """Calls of one connection that all have one call id."""
    return _pcap(_conversation(_bound(each for _ in range(count) for each in _exchange(2))))


def calls_without_a_bind(count: int) -> bytes:
    """Calls of one connection whose beginning was not captured."""
    stream = (each for number in range(count) for each in _exchange(number + 2))
    return _pcap(_conversation(stream, opened=False))


def calls_answered_backwards(count: int) -> bytes:
    """Requests, and their responses in reverse order."""
    asked = [(True, _request(number + 2)) for number in range(count)]
    answered = [(False, _response(number + 2)) for number in reversed(range(count))]
    return _pcap(_conversation(_bound(asked + answered)))


def requests_alone(count: int) -> bytes:
    """Requests that nobody answers."""
    return _pcap(_conversation(_bound((True, _request(number + 2)) for number in range(count))))


def responses_alone(count: int) -> bytes:
    """Responses to nothing."""
    return _pcap(_conversation(_bound((False, _response(number + 2)) for number in range(count))))


def fragments_of_a_call(count: int) -> bytes:
    """One request in many fragments."""
    parts = [(True, _request(2, flags=(number == 0) | (number == count - 1) << 1)) for number in range(count)]
    return _pcap(_conversation(_bound([*parts, (False, _response(2))])))


def cancels(count: int) -> bytes:
    """One request that is cancelled again and again, and orphaned."""
    ended = [(True, build_pdu(18 + number % 2, 2, b"")) for number in range(count)]
    return _pcap(_conversation(_bound([(True, _request(2)), *ended, (False, _response(2))])))


def binds(count: int) -> bytes:
    """Binds of one context on one connection, each answered and followed by a call."""
    stream = [
        each
        for number in range(count)
        for each in (
            (True, _bind(2 * number + 2, [number % 1000], ptype=14 if number else 11)),
            (False, _bind_answer(2 * number + 2, ptype=15 if number else 12)),
            *_exchange(2 * number + 3, context=number % 1000),
        )
    ]
    return _pcap(_conversation(stream))


def contexts(count: int) -> bytes:
    """Contexts, 200 in each bind, and a call of each."""
    stream: list[tuple[bool, bytes]] = []
    for at in range(0, count, 200):
        ids = range(at, min(at + 200, count))
        stream += [(True, _bind(at + 1, ids, ptype=14 if at else 11))]
        stream += [(False, _bind_answer(at + 1, len(ids), ptype=15 if at else 12))]
        stream += [each for number in ids for each in _exchange(count + number, context=number)]
    return _pcap(_conversation(stream))


def auth3_pdus(count: int) -> bytes:
    """Binds with security, each with an auth3 PDU behind it."""
    token = b"NTLMSSP\0" + bytes(24)
    stream = [
        each
        for number in range(count)
        for each in (
            (True, _bind(number + 2, [number % 1000], ptype=14 if number else 11, token=token)),
            (False, _bind_answer(number + 2, ptype=15 if number else 12, token=token)),
            (True, build_pdu(16, number + 2, bytes(4), token=token)),
        )
    ]
    return _pcap(_conversation(stream))


def bytes_of_no_pdu(count: int) -> bytes:
    """Between calls, bytes that are none."""
    return _pcap(
        _conversation(_bound(each for n in range(count) for each in [*_exchange(n + 2), (True, b"\xff" * 40)]))
    )


def connections(count: int) -> bytes:
    """Connections of many clients, each with a call."""
    return _pcap(
        frame
        for number in range(count)
        for frame in _conversation(_bound(_exchange(2)), port=1_024 + number % 60_000, isn=number * 70_000)
    )


def connections_of_one_port(count: int) -> bytes:
    """Connections of one client from one port, one after the other."""
    return _pcap(
        frame
        for number in range(count)
        for frame in (
            *_conversation(_bound(_exchange(2)), isn=number * 0x2000_0000 + number),
            _frame(number * 0x2000_0000 + number + 500, 0, FIN | ACK),
        )
    )


def half_open_connections(count: int) -> bytes:
    """SYNs of many clients."""
    return _pcap(_frame(number, 0, SYN, client=0x0A100000 + number) for number in range(count))


def _segments_of_a_client(count: int) -> list[bytes]:
    stream = [(True, _bind(1)), (False, _bind_answer(1)), *((True, _request(number + 2)) for number in range(count))]
    return list(_conversation(stream))


def segments_backwards(count: int) -> bytes:
    """Segments in reverse order."""
    frames = _segments_of_a_client(count)
    return _pcap(frames[:5] + frames[:4:-1])


def segments_in_any_order(count: int) -> bytes:
    """Segments in random order."""
    frames = _segments_of_a_client(count)
    rest = frames[5:]
    random.Random(count).shuffle(rest)
    return _pcap(frames[:5] + rest)


def segments_with_gaps(count: int) -> bytes:
    """Segments of which every second one was lost."""
    frames = _segments_of_a_client(2 * count)
    return _pcap(frames[:5] + frames[5::2])


def segments_sent_again(count: int) -> bytes:
    """One segment that is sent again and again, between others, with other bytes."""
    frames = _segments_of_a_client(count)
    again = frames[5][:-8] + b"\x55" * 8
    return _pcap(frames[:5] + [frame for each in frames[5:] for frame in (each, again)])


def ip_fragments(count: int) -> bytes:
    """Datagrams of which only the first fragment comes."""
    data = _request(2) * 8
    return _pcap(
        _ip(bytes(20) + data[:492], 0x0A010001, 0x0A020001, ident=n % 65536, fragment=0x2000) for n in range(count)
    )


def fragmented_datagrams(count: int) -> bytes:
    """Datagrams in two fragments, the second one first."""
    frames = []
    for number, frame in enumerate(_segments_of_a_client(count)):
        payload = frame[34:]
        cut = len(payload) // 16 * 8
        ends = struct.unpack(">II", frame[26:34])
        parts = [(payload[cut:], cut // 8), (payload[:cut], 0x2000)] if cut else [(payload, 0)]
        frames += [_ip(part, *ends, ident=number % 65536, fragment=place) for part, place in parts]
    return _pcap(frames)


def _tunnelled(inner: Sequence[Sequence[bytes]]) -> bytes:
    """Return frames of several VXLAN tunnels at the same time; ``inner`` are those of each."""

    def outer(frame: bytes, number: int) -> bytes:
        vxlan = struct.pack(">BxxxI", 8, number << 8) + frame
        return _ip(struct.pack(">HHHH", 50_000, 4789, 8 + len(vxlan), 0) + vxlan, 1, 2, protocol=17)

    return _pcap(outer(frame, number) for step in zip(*inner, strict=True) for number, frame in enumerate(step))


def tunnels(count: int) -> bytes:
    """A connection of the same endpoints in each of many tunnels."""
    return _tunnelled([list(_conversation(_bound(_exchange(2)), isn=n * 70_000_001)) for n in range(count)])


def mirrors(count: int) -> bytes:
    """One connection that comes through many tunnels."""
    return _tunnelled([list(_conversation(_bound(_exchange(2))))] * count)


CAPTURES: Final[tuple[Callable[[int], bytes], ...]] = (
    calls, calls_of_one_id, calls_without_a_bind, calls_answered_backwards, requests_alone, responses_alone,
    fragments_of_a_call, cancels, binds, contexts, auth3_pdus, bytes_of_no_pdu, connections, connections_of_one_port,
    half_open_connections, segments_backwards, segments_in_any_order, segments_with_gaps, segments_sent_again,
    ip_fragments, fragmented_datagrams, tunnels, mirrors,
)  # fmt: skip
