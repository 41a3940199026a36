"""A small queue manager whose clients read, and what it knows of every message: the reference for gold.

It is written from the fact sheet on RPC interfaces (4.2 to 4.5), knows nothing of how gold is made, and does one thing
after the other as it happens. What it did is there twice: as the calls that a capture shows, and as events, from which
``truth`` tells what a capture that begins at some step can show of attempts and messages.

Several clients, each an association of one or two connections; RemoteRead on context handles, qm2qm on numbers that
another host was given; queues with a subqueue. Times are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from pipeline.attempts.calls.associations import RpcConnection
from pipeline.attempts.calls.decoded_call import DecodedCall

US = 1_000_000
ORDERS, AUDIT, POISON = "srv1\\private$\\orders", "srv1\\private$\\audit", "srv1\\private$\\orders;poison"
QUEUES = (ORDERS, AUDIT, POISON)
CLEAN_UP, LOST_AFTER, POISON_AFTER = 300 * US, 60 * US, 3
OK, TIMEOUT, CANCELLED, CANCELLED_BY_CLIENT = 0, 0xC00E001B, 0xC00E0008, 0x400E03E9
INVALID_PARAMETER, INVALID_HANDLE, NOT_FOUND = 0xC00E0006, 0xC00E0007, 0xC00E0088
CONTEXT_MISMATCH = 0x1C00001A
RECEIVE, PEEK, LOOKUP_PEEK, LOOKUP_RECEIVE = 0, 0x80000000, 0x40000010, 0x40000020
ACK, NACK, REJECT = 2, 1, 0xC004


@dataclass(eq=False)
class Message:
    number: int
    state: str = "available"  # locked, gone
    purge_pending: bool = False
    transaction: str | None = None


@dataclass(eq=False)
class Client:
    number: int
    connections: list[str] = field(default_factory=list)  # open ones
    handles: list[Handle] = field(default_factory=list)
    gone: bool = False


@dataclass(eq=False)
class Handle:
    """An open queue: of RemoteRead by its context, of qm2qm by its number, which ``named`` tells since a step."""

    client: Client
    protocol: str
    queue: str
    context: str
    number: int | None
    named: int
    open: bool = True
    reads: dict[int, Attempt] = field(default_factory=dict)  # waiting and held, by request id


@dataclass(eq=False)
class Attempt:
    call: dict
    handle: Handle
    step: int
    request: int
    receive: bool
    outcome: str | None = None
    ended_at: int | None = None
    message: Message | None = None
    held: bool = False
    returned_at: int | None = None
    deadline: int | None = None
    read_handle: str | None = None
    acked_at: int | None = None
    ack_refused: bool = False
    ack_unanswered: bool = False
    ended_once: bool = False
    transaction: str | None = None
    stale: bool = False  # its handle was closed before
    by_close: bool = False  # what cancelled it was that its queue was closed


@dataclass
class Event:
    """Something that a capture shows: since ``step`` if it began then, by a handle."""

    kind: str
    at: int
    step: int
    handle: Handle
    message: int | None = None
    attempt: Attempt | None = None
    target: str | None = None


class Broker:
    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.now = 1_000 * US
        self.step = 0
        self.calls: list[dict] = []
        self.steps: list[int] = []  # of calls
        self.connections: dict[str, dict] = {}
        self.events: list[Event] = []
        self.attempts: list[Attempt] = []
        self.waiting: list[Attempt] = []
        self.acked: dict[str, list[Attempt]] = {}  # by transaction
        self.queues: dict[str, list[Message]] = {name: [] for name in QUEUES}
        self.messages = 0
        self.names = 0
        self.brought: dict[str, int] = {}  # by the calls that they came with: messages
        self.clients: list[Client] = []
        self.connect("app", 999)
        for _ in range(chance.randint(1, 3)):
            self.new_client()

    # Time

    def pass_time(self, seconds: float) -> None:
        """Go on, past all timers."""
        until = self.now + round(seconds * US) + self.chance.randint(1000, 9000)
        while due := self._due(until):
            self.now, attempt = due
            if attempt in self.waiting:
                self.answer(attempt, TIMEOUT)
                attempt.outcome = "timed_out"
            else:
                self.let_go(attempt, "expired")
                attempt.ended_at = None
        self.now = max(self.now, until)

    def _due(self, until):
        waits = [(a.deadline, n, a) for n, a in enumerate(self.attempts) if a in self.waiting and a.deadline <= until]
        holds = [
            (a.returned_at + CLEAN_UP, n, a)
            for n, a in enumerate(self.attempts)
            if a.held and a.handle.protocol == "RemoteRead" and a.returned_at + CLEAN_UP <= until
        ]
        found = min(waits + holds, default=None, key=lambda entry: entry[:2])
        return None if found is None else (found[0], found[2])

    # What a capture shows

    def connect(self, name, number):
        self.connections[name] = {"at": self.now, "number": number, "closed": None, "last_step": None}

    def call(self, protocol, opnum, connection, **values):
        name = f"call{len(self.calls):04}"
        call = {"call_key": name, "protocol": protocol, "opnum": opnum, "connection_id": connection,
                "requested_at": self.now, "outcome": "no_response"} | values  # fmt: skip
        self.calls.append(call)
        self.steps.append(self.step)
        return call

    def respond(self, call, hresult, **values):
        self.now += 137
        call |= {"responded_at": self.now, "outcome": "ok"} | values
        if hresult is not None:
            call["hresult"] = hresult

    def fault(self, call):
        self.now += 137
        call |= {"responded_at": self.now, "outcome": "fault", "fault_status": CONTEXT_MISMATCH}

    def show(self, kind, handle, *, step=None, **values):
        self.events.append(Event(kind, self.now, self.step if step is None else step, handle, **values))

    # Clients

    def new_client(self):
        client = Client(len(self.clients) + 1)
        for place in range(self.chance.randint(1, 2)):
            name = f"c{client.number}.{place}"
            self.connect(name, client.number)
            client.connections.append(name)
        self.clients.append(client)

    def some_client(self):
        there = [client for client in self.clients if not client.gone]
        return self.chance.choice(there) if there else None

    def some_handle(self, protocol=None, *, stale=0.1):
        """A handle of a client that is there; now and then one that was closed."""
        every = [h for c in self.clients if not c.gone for h in c.handles if protocol in (None, h.protocol)]
        found = [h for h in every if h.open or self.chance.random() < stale]
        return self.chance.choice(found) if found else None

    def disconnect(self):
        client = self.some_client()
        if client is None:
            return
        name = self.chance.choice(client.connections)
        client.connections.remove(name)
        for attempt in [a for a in self.waiting if a.call["connection_id"] == name]:
            self.forget(attempt)
            attempt.outcome = "unknown"
        self.connections[name] |= {"closed": self.now, "last_step": self.step}
        if client.connections:
            return
        client.gone = True
        at = self.now
        for attempt in [a for a in self.attempts if a.held and a.handle.client is client]:
            self.now = at
            self.let_go(attempt, "rundown")
            attempt.ended_at = at
        self.now = at
        for handle in client.handles:
            if handle.open:
                self.show("gone", handle)
            handle.open = False

    # Queues

    def open(self):
        client = self.some_client()
        if client is None:
            return
        queue, connection = self.chance.choice(QUEUES), self.chance.choice(client.connections)
        self.names += 1
        context = f"{self.names:040x}"
        if self.chance.random() < 0.6:
            call = self.call("RemoteRead", 2, connection, queue=queue)
            self.respond(call, None, context_handle=context)
            client.handles.append(Handle(client, "RemoteRead", queue, context, None, self.step))
            return
        number = 100 + self.names
        numbers = dict.fromkeys(("queue_handle", "queue_descriptor", "open_context"), number)
        call = self.call("qmcomm", 2, "app", queue=queue)
        self.respond(call, OK, context_handle=f"ff{context[2:]}", **numbers)
        call = self.call("qm2qm", 2, connection, **numbers)
        self.respond(call, OK, context_handle=context)
        client.handles.append(Handle(client, "qm2qm", queue, context, number, self.step))

    def close(self):
        handle = self.some_handle()
        if handle is None:
            return
        call = self.call(
            handle.protocol, 3, self.chance.choice(handle.client.connections), context_handle=handle.context
        )
        if not handle.open:
            self.fault(call)
            return
        handle.open = False
        self.show("closed", handle)
        at = self.now
        for attempt in [a for a in self.waiting if a.handle is handle]:
            self.answer(attempt, CANCELLED)
            attempt.outcome, attempt.ended_at, attempt.by_close = "cancelled", at, True
        if handle.protocol == "RemoteRead":
            for attempt in [a for a in self.attempts if a.held and a.handle is handle]:
                self.let_go(attempt, "rundown")
                attempt.ended_at = at
        self.respond(call, OK)

    def arrive(self):
        self.messages += 1
        self.queues[self.chance.choice(QUEUES)].append(Message(self.messages))
        self.serve()

    def serve(self):
        """Give what is there to whoever waits, first come first served."""
        for attempt in list(self.waiting):
            free = self.free(attempt.handle.queue)
            if free:
                self.hand_out(attempt, free[0])

    def free(self, queue):
        return [message for message in self.queues[queue] if message.state == "available"]

    # Reads

    def start(self):
        handle = self.some_handle()
        if handle is None:
            return
        connection = self.chance.choice(handle.client.connections)
        request, timeout = self.chance.randint(1, 4), self.chance.choice([0, 0, 20_000, 400_000])
        action = self.chance.choice([RECEIVE] * 5 + [PEEK, LOOKUP_PEEK, LOOKUP_RECEIVE])
        lookup = action in (LOOKUP_PEEK, LOOKUP_RECEIVE)
        values = {"action": action, "timeout_ms": 0 if lookup else timeout, "request_id": request}
        wanted = self.chance.randint(1, max(self.messages, 1)) if lookup else None
        transaction, opnum = None, 10 if lookup else 9
        if handle.protocol == "RemoteRead":
            opnum = 7
            values |= {"context_handle": handle.context, "lookup_id": wanted or 0}
            if action == RECEIVE and self.chance.random() < 0.25:
                opnum, transaction = 13, f"{len(self.calls):08x}-0000-0000-0000-000000000000"
                values["transaction_id"] = transaction
        else:
            opnum = opnum if lookup or self.chance.random() < 0.7 else 0  # RemoteQMStartReceive tells no identifier
            values |= {"queue_handle": handle.number, "lookup_id": wanted}
        call = self.call(handle.protocol, opnum, connection, **values)
        attempt = Attempt(
            call, handle, self.step, request, action in (RECEIVE, LOOKUP_RECEIVE), transaction=transaction
        )
        self.attempts.append(attempt)
        if not handle.open or request in handle.reads:
            attempt.outcome, attempt.stale = "failed", not handle.open
            if handle.open:
                self.respond(call, INVALID_PARAMETER, sequence_id=0)
            else:
                self.fault(call)
            return
        free = [m for m in self.free(handle.queue) if wanted is None or m.number == wanted]
        if free:
            self.hand_out(attempt, free[0])
        elif values["timeout_ms"] and not lookup:
            attempt.deadline = self.now + values["timeout_ms"] * 1000
            handle.reads[request] = attempt
            self.waiting.append(attempt)
        else:
            attempt.outcome = "empty"
            self.respond(call, NOT_FOUND if lookup else TIMEOUT, sequence_id=0)

    def hand_out(self, attempt, message):
        self.brought[attempt.call["call_key"]] = message.number
        values = {} if attempt.call["opnum"] == 0 else {"sequence_id": message.number}
        if attempt in self.waiting:
            self.forget(attempt)
        if attempt.receive:
            message.state = "locked"
            attempt.message, attempt.held = message, True
            attempt.handle.reads[attempt.request] = attempt
            if attempt.handle.protocol == "qm2qm":
                del attempt.handle.reads[attempt.request]  # its number is free once it was answered
                self.names += 1
                attempt.read_handle = f"ee{self.names:038x}"
                values["remote_read_handle"] = attempt.read_handle
        else:
            attempt.outcome = "peeked"
        self.respond(attempt.call, OK, **values)
        attempt.returned_at = self.now
        self.show("out" if attempt.receive else "peek", attempt.handle, step=attempt.step, message=message.number,
                  attempt=attempt)  # fmt: skip

    def answer(self, attempt, hresult):
        """Answer a read that waits, without a message."""
        self.forget(attempt)
        self.respond(attempt.call, hresult, sequence_id=0)

    def forget(self, attempt):
        self.waiting.remove(attempt)
        attempt.handle.reads.pop(attempt.request, None)

    def let_go(self, attempt, outcome):
        """A reader's hold ends by itself: the message is there again."""
        attempt.held, attempt.outcome, attempt.ended_at = False, outcome, self.now
        attempt.handle.reads.pop(attempt.request, None)
        self.show("back", attempt.handle, step=attempt.step, message=attempt.message.number, attempt=attempt)
        self.give_back(attempt.message)

    def give_back(self, message):
        if message.state == "locked":
            message.state = "gone" if message.purge_pending else "available"
            self.serve()

    def end(self):
        """End a read, sometimes one that is over, or that never was."""
        ended = [a for a in self.attempts if a.receive and a.returned_at and a.message and not a.handle.client.gone]
        held = [a for a in ended if a.held and (a.handle.open or a.handle.protocol == "qm2qm")]
        stale = self.chance.random() < 0.15
        choices = ended if stale else held
        if not choices:
            return
        attempt = self.chance.choice(choices)
        handle, ack = attempt.handle, self.chance.choice([ACK, ACK, ACK, NACK])
        connection = self.chance.choice(handle.client.connections)
        if handle.protocol == "qm2qm":
            call = self.call("qm2qm", 1, connection, remote_read_handle=attempt.read_handle, ack=ack)
        else:
            if not attempt.held and any(
                a is not attempt and a.handle is handle and a.request == attempt.request and a.step > attempt.step
                for a in self.attempts
            ):
                self.calls_nothing()
                return  # its number is another read's now
            opnum = 15 if attempt.call["opnum"] == 13 else 9
            call = self.call("RemoteRead", opnum, connection, context_handle=handle.context,
                             request_id=attempt.request, ack=ack)  # fmt: skip
        if not attempt.held or (handle.protocol == "RemoteRead" and not handle.open):
            self.refuse_end(attempt, call, ack)
            return
        attempt.held = False
        handle.reads.pop(attempt.request, None)
        message = attempt.message
        if message.state == "gone":
            attempt.outcome, attempt.ended_at = "failed", self.now
            attempt.ack_refused = ack == ACK
            self.show("failed", handle, step=attempt.step, message=message.number, attempt=attempt)
            self.respond(call, NOT_FOUND)
            return
        attempt.outcome, attempt.ended_at = "acked" if ack == ACK else "nacked", self.now
        kind = "taken" if ack == ACK else "back"
        self.show(kind, handle, step=attempt.step, message=message.number, attempt=attempt)
        if ack == ACK:
            attempt.acked_at = self.now
        self.respond(call, OK)
        if self.chance.random() < 0.05:  # no capture has the answer
            attempt.ack_unanswered = ack == ACK
            call |= {"responded_at": None, "hresult": None, "outcome": "no_response"}
        if attempt.transaction is not None:
            message.transaction = attempt.transaction
            self.acked.setdefault(attempt.transaction, []).append(attempt)
        elif ack == ACK:
            message.state = "gone"
        else:
            self.give_back(message)

    def calls_nothing(self):
        """A step without a call."""

    def refuse_end(self, attempt, call, ack):
        """An End of a read that is over: whatever became of that stays."""
        if ack == ACK:
            attempt.ack_refused = True
        if attempt.outcome == "expired" and attempt.ended_at is None and not attempt.ended_once:
            attempt.ended_at = self.now
        attempt.ended_once = True
        self.respond(call, INVALID_HANDLE)

    def outcome_of_transaction(self):
        """Commit or abort, which no capture shows."""
        if not self.acked:
            return
        name = self.chance.choice(sorted(self.acked))
        commit = self.chance.random() < 0.5
        for attempt in self.acked.pop(name):
            message = attempt.message
            message.transaction = None
            if message.state != "locked":
                continue
            if commit and attempt.outcome in ("acked", "rejected"):
                message.state = "gone"
            else:
                self.give_back(message)

    def reject(self):
        acked = [a for held in self.acked.values() for a in held
                 if a.outcome == "acked" and a.handle.open and not a.handle.client.gone]  # fmt: skip
        if not acked:
            return
        attempt = self.chance.choice(acked)
        call = self.call("RemoteRead", 14, self.chance.choice(attempt.handle.client.connections),
                         context_handle=attempt.handle.context, lookup_id=attempt.message.number,
                         acknowledgement_class=REJECT)  # fmt: skip
        attempt.outcome = "rejected"
        self.show("rejected", attempt.handle, step=attempt.step, message=attempt.message.number, attempt=attempt)
        self.respond(call, OK)

    def cancel(self):
        handle = self.some_handle(stale=0)
        if handle is None:
            return
        request = self.chance.choice([*handle.reads, self.chance.randint(1, 4)])
        call = self.call(handle.protocol, 5 if handle.number else 8, self.chance.choice(handle.client.connections),
                         request_id=request)  # fmt: skip
        call |= {"queue_handle": handle.number} if handle.number else {"context_handle": handle.context}
        attempt = handle.reads.get(request)
        if attempt not in self.waiting or not attempt.receive:
            self.respond(call, INVALID_HANDLE)
            return
        at = self.now
        self.respond(call, OK)
        self.answer(attempt, CANCELLED_BY_CLIENT if handle.number else CANCELLED)
        attempt.outcome, attempt.ended_at = "cancelled", at

    def purge(self):
        handle = self.some_handle()
        if handle is None:
            return
        call = self.call(handle.protocol, 6, self.chance.choice(handle.client.connections))
        call |= {"queue_handle": handle.number} if handle.number else {"context_handle": handle.context}
        if not handle.open:
            self.fault(call)
            return
        self.show("purge", handle)
        for message in self.queues[handle.queue]:
            if message.state == "available":
                message.state = "gone"
            elif message.state == "locked":
                message.purge_pending = True
        self.respond(call, OK)

    def move(self):
        """Move a message between a queue and its subqueue, or try to."""
        handle = self.some_handle("RemoteRead", stale=0)
        if handle is None or handle.queue == AUDIT:
            return
        target = POISON if handle.queue == ORDERS else ORDERS
        connection = self.chance.choice(handle.client.connections)
        self.names += 1
        opened = self.call("RemoteRead", 11, connection, queue=target)
        self.respond(opened, None, context_handle=f"dd{self.names:038x}", move_context=self.names)
        there = self.queues[handle.queue]
        number = self.chance.choice([m.number for m in there] or [1])
        call = self.call("RemoteRead", 10, connection, context_handle=handle.context, move_context=self.names,
                         lookup_id=number)  # fmt: skip
        message = next((m for m in there if m.number == number and m.state == "available"), None)
        if message is None:
            self.respond(call, NOT_FOUND)
            return
        self.show("move", handle, message=number, target=target)
        there.remove(message)
        self.queues[target].append(message)
        self.respond(call, OK)
        self.serve()

    def remove(self):
        """An administrator takes a message away, under its reader or not."""
        locked = [m for there in self.queues.values() for m in there if m.state == "locked" and m.transaction is None]
        if locked:
            self.chance.choice(locked).state = "gone"

    def run(self, steps, **often):
        """Take some steps; ``often``: how often some kinds of them are taken, where that is not as usual."""
        kinds = {
            self.arrive: 10, self.open: 5, self.start: 18, self.end: 14, self.close: 2, self.cancel: 3, self.purge: 1,
            self.move: 2, self.reject: 2, self.outcome_of_transaction: 2, self.disconnect: 1, self.remove: 0.5,
        }  # fmt: skip
        kinds |= {getattr(self, kind): weight for kind, weight in often.items()}
        for _ in range(steps):
            self.step += 1
            self.pass_time(self.chance.choice([0.1, 1, 1, 5, 5, 20, 20, 80]))
            if self.chance.random() < 0.03:
                self.pass_time(320)
            if self.some_client() is None:
                self.new_client()
            self.chance.choices(list(kinds), list(kinds.values()))[0]()
        self.pass_time(1)
        return self


def captured(broker, begin=0):
    """The calls and connections of a capture that begins at a step and ends now."""
    calls = [
        DecodedCall(**{name: value for name, value in call.items() if value is not None})
        for call, step in zip(broker.calls, broker.steps, strict=True)
        if step >= begin
    ]
    seen = {call.connection_id for call in calls}
    connections = [
        RpcConnection(name, f"10.0.1.{each['number'] % 250}", each["at"], each["closed"] or broker.now, each["closed"],
                   each["number"])
        for name, each in broker.connections.items()
        if name in seen or each["last_step"] is None or each["last_step"] >= begin  # it is there, used or not
    ]  # fmt: skip
    return calls, connections


def place(handle, begin):
    """The queue, or the handle that stands for it where the capture began after it was named."""
    if handle.named >= begin:
        return handle.queue, None
    return None, handle.context if handle.number is None else str(handle.number)


def attempts_truth(broker, begin=0):
    """Per Start: what became of it, and when it ended."""
    found = {}
    for attempt in broker.attempts:
        if attempt.step >= begin:
            outcome = attempt.outcome or "in_flight"
            queue = None if attempt.stale else place(attempt.handle, begin)[0]
            unseen = attempt.by_close and attempt.handle.number and attempt.handle.named < begin
            found[attempt.call["call_key"]] = (outcome, queue, None if unseen else attempt.ended_at)
    return found


@dataclass
class Told:
    """What is known of a message at a place, as it goes along."""

    attempts: list = field(default_factory=list)
    aborted: set = field(default_factory=set)  # ids of the attempts whose transaction was seen to be aborted
    readers: list = field(default_factory=list)
    peeks: int = 0
    fate: str | None = None
    pending: bool = False
    moved_to: str | None = None

    def is_there(self):
        """The queue has the message: what took it in a transaction was aborted."""
        taken = {id(a) for a in self.attempts if a.transaction is not None and a.outcome in ("acked", "rejected")}
        if self.attempts and id(self.attempts[-1]) in taken - self.aborted:
            self.fate = "returned"
        self.aborted |= taken

    def outcomes(self):
        return ["aborted" if id(a) in self.aborted else a.outcome or "in_flight" for a in self.attempts]


def truth(broker, begin=0, until=None):
    """Per place and message that was received: outcomes, readers, peeks, fate, where it was moved to, risk.

    As of ``until``, microseconds: what happened later did not happen yet.
    """
    told: dict = {}
    numbered = {  # a move names a message by its identifier, which not every read tells
        (place(event.handle, begin), event.message)
        for event in broker.events
        if event.step >= begin and event.kind in ("out", "peek") and event.attempt.call["opnum"] != 0
    }
    for event in broker.events:
        if event.step < begin or (until is not None and event.at > until):
            continue
        where = place(event.handle, begin)
        if event.kind == "purge":
            for (at, _), each in told.items():
                if at == where and each.fate == "returned":
                    each.fate = "purged"
                elif at == where and each.fate == "held":
                    each.pending = True
        if event.message is None:
            continue
        each = told.setdefault((where, event.message), Told())
        if event.kind == "out":
            each.is_there()
            each.attempts.append(event.attempt)
            each.readers.append(f"10.0.1.{event.handle.client.number}")
            each.fate, each.pending, each.moved_to = "held", False, None
        elif event.kind == "peek":
            each.is_there()
            each.peeks += 1
        elif event.kind == "move":
            if each.attempts and (where, event.message) in numbered:
                each.is_there()
                each.fate, each.moved_to = "moved", event.target
            home = told.get(((event.target, None), event.message))
            if home is not None and home.attempts and ((event.target, None), event.message) in numbered:
                home.is_there()
                home.fate, home.moved_to = "returned", None
        elif each.attempts and each.attempts[-1] is event.attempt:
            after = {"taken": "consumed", "rejected": "rejected", "failed": "unknown", "back": "returned"}[event.kind]
            each.fate = "purged" if after == "returned" and each.pending else after
    rows = {}
    for key, each in told.items():
        if each.attempts:
            fate = "purged" if each.fate == "held" and each.pending else each.fate
            rows[key] = (each.outcomes(), list(dict.fromkeys(each.readers)), each.peeks, fate, each.moved_to,
                         risk(broker, each.attempts, each.outcomes(), begin))  # fmt: skip
    return rows


def risk(broker, attempts, outcomes, begin):
    if outcomes.count("acked") > 1:
        return "read_twice"
    if any(attempt.ack_refused for attempt in attempts):
        return "ack_failed"
    if any(attempt.ack_unanswered for attempt in attempts):
        return "ack_unanswered"
    gone = {id(event.handle): event.at for event in broker.events if event.kind == "gone"}
    closed = [event for event in broker.events if event.kind == "closed" and event.handle.number]
    for attempt, outcome in zip(attempts, outcomes, strict=True):
        left_at, handle = gone.get(id(attempt.handle)), attempt.handle
        if (
            handle.number
            and handle.named < begin
            and any(
                event.handle.client is handle.client and event.handle.named < begin and event.step >= attempt.step
                for event in closed
            )
        ):
            continue  # what its client closed was opened before the capture began: it may have been this
        if outcome == "acked" and left_at is not None and left_at - attempt.acked_at <= LOST_AFTER:
            return "reader_lost"
    back = sum(outcome in ("nacked", "rundown", "expired", "aborted") for outcome in outcomes)
    return "poison" if back >= POISON_AFTER else None
