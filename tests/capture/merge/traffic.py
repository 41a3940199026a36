"""Captures with all anomalies that a cut between two files can meet: named ones, and random ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from pcapgen.scenarios import NTLM_TOKEN, interleaved_dialogue, remote_read_dialogue, secured_dialogue


@dataclass(frozen=True)
class Story:
    """A capture, and the four places that cut it into five files."""

    capture: bytes
    places: tuple[int, ...]


def sealed() -> Dialogue:
    """Reads at authentication level 6, among them a fragmented receive."""
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ), auth=rpc.Auth(10, 6, b"NTLMSSP\0" + bytes(24)))
    dialogue.auth = rpc.Auth(10, 6, NTLM_TOKEN)
    dialogue.call(2, make_stub(2, 64), make_stub(3, 32))
    dialogue.call(7, make_stub(7, 64), make_stub(8, 4000), answer_cuts=(1440, 1440))
    dialogue.call(3, make_stub(3, 32), make_stub(4, 32))
    return dialogue


def alone() -> Dialogue:
    """A request of several fragments, unanswered calls, and a second bind in between."""
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    dialogue.call(7, make_stub(1, 9000), make_stub(2, 20), cuts=(4000, 4000))
    dialogue.start(7, make_stub(3, 56))
    dialogue.bind(rpc.Context(1, rpc.QM2QM), alter=True, address=b"")
    dialogue.start(7, make_stub(4, 56))
    dialogue.call(7, make_stub(7, 4), make_stub(8, 4), context=1)
    return dialogue


def foreign() -> Dialogue:
    """Another protocol on an MSMQ port, with stubs of MSMQ lengths: only its bind shows that it is not MSMQ."""
    dialogue = Dialogue()
    dialogue.bind(rpc.Context(0, rpc.WINREG))
    for number in range(5):
        dialogue.call(7, make_stub(number, 56), make_stub(number + 9, 2000), answer_cuts=(960,))
        dialogue.call(9, make_stub(number, 28), make_stub(number + 9, 4))
    return dialogue


def _captured(dialogue: Dialogue, parts: Sequence[t.Segment]) -> bytes:
    return c.pcap(t.records(dialogue.flow, parts)).data


def _around(count: int, *edges: int) -> tuple[int, ...]:
    """Return the edges as places in a capture of ``count`` records, filled up to four by places in between."""
    places = {edge for edge in edges if 0 < edge < count}
    spare = [count * index // 7 for index in (3, 5, 1, 2, 4, 6)] + list(range(1, count))
    for place in spare:
        if len(places) == 4:
            break
        if 0 < place < count:
            places.add(place)
    assert len(places) == 4
    return tuple(sorted(places))


def _together(*captured: Sequence[c.Record]) -> list[c.Record]:
    return sorted((record for records in captured for record in records), key=lambda record: record.time_ns)


def stories() -> dict[str, Callable[[], Story]]:
    """Named captures, cut at critical places."""
    big = remote_read_dialogue(size=12_000, cuts=(5816, 5816))
    parts = t.segments(big.script)
    data = t.data_indexes(parts)
    long = [index for index in data if len(parts[index].payload) == 1460]
    bind, answer = data[0], data[1]

    def story(trouble: Sequence[t.Segment], *edges: int, dialogue: Dialogue = big) -> Story:
        return Story(_captured(dialogue, trouble), _around(len(trouble), *edges))

    def of(dialogue: Dialogue, *, mss: int = 536) -> Story:
        trouble = t.segments(dialogue.script, mss=mss)
        return Story(_captured(dialogue, trouble), _around(len(trouble)))

    def several() -> Story:
        flows = [t.Flow(), t.Flow(client_port=49201, isn=(7, 77)), t.Flow(client="10.0.0.8", isn=(0xFFFFFE00, 5))]
        taken = []
        for number, flow in enumerate(flows):
            dialogue = remote_read_dialogue(flow, size=2500 + number)
            begun = t.START_NS + number * 700_000
            taken.append(t.records(flow, t.segments(dialogue.script, mss=900, start_ns=begun)))
        records = _together(*taken)
        return Story(c.pcapng(records, order=">", tsresol=9).data, _around(len(records)))

    def again() -> Story:
        """The same four-tuple twice: closed and opened again, then opened again without a FIN."""
        taken = []
        for number, (isn, closed) in enumerate(
            (((1000, 2000), True), ((9_000_000, 5), False), ((5, 70_000_000), True))
        ):
            flow = t.Flow(isn=isn)
            segments = t.segments(
                remote_read_dialogue(flow).script, closed=closed, start_ns=t.START_NS + number * 3_000_000_000
            )
            taken.append(t.records(flow, segments))
        records = _together(*taken)
        first, second = len(taken[0]), len(taken[0]) + len(taken[1])
        return Story(c.pcap(records).data, tuple(sorted({first - 4, first + 2, second - 3, second + 3})))

    def binary() -> Story:
        dialogue, other = remote_read_dialogue(size=4000), t.Flow(client_port=50000, server_port=1801)
        script = t.Script()
        for number in range(6):
            script.send(number % 2, make_stub(number, 700))
        records = _together(
            t.records(dialogue.flow, t.segments(dialogue.script)),
            t.records(other, t.segments(script, start_ns=t.START_NS + 100_000)),
        )
        return Story(c.pcap(records, order=">", magic=c.NANOSECONDS).data, _around(len(records)))

    return {
        "fragments": lambda: story(parts, long[1], long[3], long[5]),
        "bind in pieces": lambda: story(parts, bind, answer, answer + 1),
        "handshake": lambda: story(parts, 1, 2, bind),
        "FIN": lambda: story(parts, len(parts) - 1, len(parts) - 2, len(parts) - 3),
        "lost at the cut": lambda: story(t.drop_segments(parts, long[3]), long[3], long[6]),
        "lost before the cut": lambda: story(t.drop_segments(parts, long[3]), long[3] + 1, long[6]),
        "bind lost": lambda: story(t.drop_segments(parts, bind, answer), data[4], long[2]),
        "retransmission in the next file": lambda: story(
            t.retransmit(parts, long[2], at=long[2] + 1), long[2] + 1, long[5]
        ),
        "retransmission far behind": lambda: story(
            t.retransmit(parts, long[1], at=long[-1] + 1), long[4], long[-1] + 1
        ),
        "conflict in the next file": lambda: story(
            t.retransmit(parts, long[2], at=long[2] + 1, payload=bytes(1460)), long[2] + 1, long[5]
        ),
        "late over the cut": lambda: story(t.move_segment(parts, long[1], long[3]), long[2], long[3]),
        "late over all cuts": lambda: story(t.move_segment(parts, long[1], long[-1]), long[2], long[4], long[5]),
        "answer before its question": lambda: story(t.move_segment(parts, data[2], data[3]), data[3], long[2]),
        "bind_ack before its bind": lambda: story(t.move_segment(parts, bind, answer + 1), answer, answer + 1),
        "keep-alive": lambda: story(t.keep_alive(parts, long[4]), long[4] + 1, long[4] + 2),
        "client alone": lambda: story(t.one_side(parts, t.CLIENT)),
        "server alone": lambda: story(t.one_side(parts, t.SERVER)),
        "mid-stream": lambda: story(parts[long[2] :]),
        "mid-stream between PDUs": lambda: story(parts[data[4] :]),
        "reset": lambda: story(t.reset(parts[:-3], t.CLIENT)),
        "small segments": lambda: of(remote_read_dialogue(size=3000), mss=90),
        "NDR64, interleaved": lambda: of(interleaved_dialogue()),
        "integrity, big-endian": lambda: of(secured_dialogue()),
        "sealed": lambda: of(sealed()),
        "nobody answers": lambda: of(alone()),
        "another protocol": lambda: of(foreign()),
        "several connections": several,
        "four-tuple again": again,
        "binary protocol": binary,
    }


# -- any ---------------------------------------------------------------------------------------------------------------

_DIALOGUES = (remote_read_dialogue, interleaved_dialogue, secured_dialogue, sealed, alone, foreign)


class Drawn:
    """A random capture, and a description of how it was made, which a failure shows."""

    def __init__(self, capture: bytes, told: tuple[str, ...]) -> None:
        self.capture, self.told = capture, told

    def __repr__(self) -> str:
        return "\n".join(["", *self.told])


@st.composite
def captures(draw: st.DrawFn) -> Drawn:
    """One to three parallel conversations, cut into any segments, with any anomalies."""
    taken = []
    told = []
    for number in range(draw(st.integers(1, 3))):
        make = draw(st.sampled_from(_DIALOGUES))
        size = draw(st.integers(0, 9000)) if make is remote_read_dialogue else None
        dialogue = make() if size is None else remote_read_dialogue(size=size, cuts=(1000, 1000))
        isn = draw(st.sampled_from([(1000, 900_000), (0xFFFFFF00, 0xFFFFFFF0), (1 << 31, 3)]))
        dialogue.flow = t.Flow(client_port=49200 + number, isn=isn)
        how: dict[str, Any] = {
            "mss": draw(st.sampled_from([1460, 536, 150])),
            "opened": draw(st.booleans()),
            "closed": draw(st.booleans()),
            "acks": draw(st.booleans()),
            "start_ns": t.START_NS + draw(st.integers(0, 30_000)) * 1000 + number * 7,
        }
        told.append(f"{make.__name__}(size={size}), isn {isn}, {how}")
        parts = t.segments(dialogue.script, **how)
        for kind in draw(st.lists(st.sampled_from(["lost", "again", "late", "begins", "ends"]), max_size=4)):
            parts, what = _trouble(draw, kind, parts)
            told.append(what)
        taken.append(t.records(dialogue.flow, parts))
    records = _together(*taken)
    order = draw(st.sampled_from("<>"))
    if draw(st.booleans()):
        return Drawn(c.pcapng(records, order=order, tsresol=9).data, (*told, f"pcapng {order}"))
    return Drawn(c.pcap(records, order=order).data, (*told, f"pcap {order}"))


def _trouble(draw: st.DrawFn, kind: str, parts: list[t.Segment]) -> tuple[list[t.Segment], str]:
    """Return the segments with one more anomaly, and its name."""
    data = t.data_indexes(parts)
    if len(data) < 4:
        return parts, "none"
    index = draw(st.sampled_from(data))
    if kind == "lost":
        return t.drop_segments(parts, index), f"lost {index}"
    if kind == "again":
        at = draw(st.integers(index + 1, min(index + 20, len(parts))))
        return t.retransmit(parts, index, at=at), f"{index} again at {at}"
    if kind == "late":
        at = draw(st.integers(index, min(index + 6, len(parts) - 1)))
        return t.move_segment(parts, index, at), f"{index} late at {at}"
    middle = len(parts) // 2
    if kind == "begins":
        begin = draw(st.integers(0, middle))
        return parts[begin:], f"begins at {begin}"
    end = draw(st.integers(middle, len(parts)))
    return parts[:end], f"ends at {end}"


@dataclass(frozen=True)
class Plan:
    """Where a capture is cut, and which files each run gets, in which order."""

    places: tuple[int, ...]
    runs: tuple[tuple[int, ...], ...]


@st.composite
def plans(draw: st.DrawFn, count: int) -> Plan:
    """One to eight files of a capture of ``count`` records, in any order, in any number of runs."""
    places = sorted(draw(st.sets(st.integers(1, count - 1), max_size=7))) if count > 1 else []
    order = draw(st.permutations(range(len(places) + 1)))
    ends = sorted(draw(st.sets(st.integers(1, len(order)), max_size=3)) | {len(order)})
    runs = [tuple(order[begin:end]) for begin, end in pairwise([0, *ends])]
    return Plan(tuple(places), tuple(run for run in runs if run))
