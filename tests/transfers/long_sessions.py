"""Random long sessions, and how they come in parts: file after file, late ones, holes that are filled later."""

import dataclasses
from random import Random

from transfers.conversations import Conversation, acknowledgement, message, session_ack

SEQUENCE = 7 << 32 | 1


@dataclasses.dataclass
class End:
    """What one end of a session counts."""

    sent: int = 0
    recoverable: int = 0
    received: int = 0
    received_recoverable: list = dataclasses.field(default_factory=list)
    open: list = dataclasses.field(default_factory=list)  # recoverable numbers of the other end that no header named

    def header(self, window):
        lowest = self.open[0] if self.open else 0
        flags = sum(1 << number - lowest for number in self.open if number - lowest < 32)
        self.open = [number for number in self.open if number - lowest >= 32]
        return {
            "ack": self.received % 65536, "r": lowest % 65536, "flags": flags, "user": self.sent % 65536,
            "recoverable": self.recoverable % 65536, "window": window,
        }  # fmt: skip


def long_session(draw: Random, packets=120):
    """A session that goes on and on; some of its numbers begin high, some of its clocks go backwards."""
    talk = Conversation(f"talk {draw.random()}", 41_000)
    first = draw.choice([0, 0, 0, 65_500])
    ends = {"client": End(), "server": End()}
    if first:
        talk.skip("client", 100)
        talk.skip("server", 100)
        for side, other in (("client", "server"), ("server", "client")):
            ends[side].sent = ends[side].recoverable = ends[other].received = first
    else:
        talk.handshake()
    at, disorder, one_way = 1.0, draw.choice([0, 0, 0.02]), draw.random() < 0.3
    taps, cut = draw.random() < 0.3, draw.choice([0, 0, 0.05])
    for number in range(packets):
        at += draw.choice([0.001, 0.3, 0.3, 1, 5, 40 if number % 25 == 0 else 0.2])
        side = "client" if draw.random() < (0.9 if one_way else 0.6) else "server"
        ours, theirs = ends[side], ends["server" if side == "client" else "client"]
        moment = round(at - (draw.choice([0.5, 2]) if draw.random() < disorder else 0), 3)
        window = draw.choice([64, 64, 4, 2])
        capture = draw.choice(["tap"] * 9 + ["other tap"]) if taps else f"file {number // 30}"
        if draw.random() < (0.3 if side == "client" else 0.5):
            talk.say(side, "session_ack", session_ack(**ours.header(window)), moment, capture=capture)
            continue
        kind = draw.choice(["express", "recoverable", "transactional", "order"])
        ours.sent += 1
        theirs.received += 1
        if kind in ("recoverable", "transactional"):
            ours.recoverable += 1
            theirs.open.append(ours.recoverable)
        sh = ours.header(window) if draw.random() < 0.3 else None
        if kind == "order":
            talk.say(side, "order_ack", acknowledgement(SEQUENCE, number + 1), moment, capture=capture)
            continue
        said = {"transaction": (0, SEQUENCE, draw.randint(2, 6), 1), "flags": 0} if kind == "transactional" else {}
        raw = message(number, recoverable=kind == "recoverable", sh=sh, **said)
        held = min(draw.choice([len(raw) - 1, 200, 40]), len(raw)) if draw.random() < cut else None
        row = talk.say(side, "user_message", raw, moment, capture=capture, seen=held)
        row["observations"] = draw.choice([1, 2])
    if draw.random() < 0.3:
        talk.closed = (at + draw.choice([1, 30, 200]), draw.choice(["fin", "rst"]))
    return talk


@dataclasses.dataclass
class Seen(Conversation):
    """A session of which some bytes between packets were captured, and are no packets."""

    stray: int = 0

    def connection(self):
        found = super().connection()
        return found | {"client_bytes": found["client_bytes"] + self.stray}


def seen_so_far(talk, rows, *, closed=True, stray=0):
    """The session as captures show it that have these of its packets; ``stray``: missing bytes that are no packets."""
    missing = 0
    for side in ("client", "server"):
        ours = [row for row in rows if row["sent_by"] == side]
        missing += max((row["stream_offset"] + row["length_bytes"] for row in ours), default=0)
        missing -= sum(row["seen_bytes"] for row in ours)
    last = max((row["sent_at"].timestamp() for row in rows), default=0) - START_S if rows else 0
    stray = min(stray, missing)
    end = talk.closed if closed else None
    return Seen(talk.name, talk.port, rows, closed=end, missing=missing - stray, last=last, stray=stray)


START_S = Conversation().connection()["first_packet_at"].timestamp()


def parts(draw: Random, talk, runs=6):
    """The session as it is there after each run: most packets come in order, some late, some files are forgotten."""
    rows = sorted(talk.rows, key=lambda row: row["sent_at"])
    bounds = [*sorted(draw.sample(range(1, len(rows)), runs - 1)), len(rows)]
    lost = {id(row) for row in rows if draw.random() < draw.choice([0, 0, 0.03])}
    first = 0
    there, late = [], []
    for bound in bounds:
        new = rows[first:bound]
        first = bound
        if draw.random() < 0.3 and len(new) > 3:  # a file that comes later
            place = draw.randrange(len(new) - 2)
            late.append(new[place : place + 3])
            new = new[:place] + new[place + 3 :]
        if late and draw.random() < 0.4:
            new = new + late.pop()
        there = [*there, *(row for row in new if id(row) not in lost)]
        if draw.random() < 0.1:
            there = there[: len(there) // 3] + there[len(there) // 3 + 2 :]
        yield seen_so_far(talk, there, closed=bound == len(rows), stray=draw.choice([0, 0, 0, 100, 10**9]))
