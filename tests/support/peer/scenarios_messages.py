"""Scenarios of the recorded clients, continued: what messages hold, and how they are looked up.

``World.send`` writes into the truth what each sender says of its message.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

from peer import comqc
from peer.client import NDR, NDR64
from peer.comqc import (
    CLSID,
    IDISPATCH,
    IID,
    PARTITION,
    RECORD_LIBRARY,
    RECORD_TYPE,
    Writer,
    bstr,
    numbers_of,
    persisted_object,
    pointed,
    safearray,
    string,
    value,
    variant,
)
from peer.idl import DIRECT, QueueFormat
from peer.manager import Manager
from peer.methods import QM2QM, QMCOMM, REMOTEREAD
from peer.packets import Message, sid
from peer.queues import LOOKUP_PEEK, LOOKUP_RECEIVE, PEEK_CURRENT, PEEK_NEXT, RECEIVE
from peer.reading import ACK, NACK, DependentReader, RemoteReader
from peer.scenarios_reading import check
from peer.world import World

SENT = 1_700_003_000
PEEK_ACCESS = 0x20
FIRST, LAST = 0, 0xFFFF_FFFF_FFFF_FFFF
NOT_FOUND, INVALID, DENIED = 0xC00E0088, 0xC00E0006, 0xC0000022

# Queued components: arguments as (what writes it, its type, its value as text)
Argument = tuple[Writer, str, str | None]
VALUES: list[Argument] = [
    (value(0), "VT_EMPTY", None),
    (value(1), "VT_NULL", None),
    (value(2, "h", -12), "VT_I2", "-12"),
    (value(3, "i", 4711), "VT_I4", "4711"),
    (value(4, "f", 0.5), "VT_R4", "0.5"),
    (value(5, "d", -1.25), "VT_R8", "-1.25"),
    (value(6, "q", 199_900), "VT_CY", "19.9900"),
    (value(7, "d", 46_347.25), "VT_DATE", "2026-11-21T06:00:00"),
    (string("Grüße, Übersee"), "VT_BSTR", "Grüße, Übersee"),
    (value(0x0A, "I", 0x80020004), "VT_ERROR", "0x80020004"),  # an optional argument that is left out
]
MORE_VALUES: list[Argument] = [
    (value(0x0B, "H", 0xFFFF), "VT_BOOL", "true"),
    (value(0x0E, "QQ", 2 << 16 | 0x80 << 24, 12_345), "VT_DECIMAL", "-123.45"),
    (value(0x10, "b", -1), "VT_I1", "-1"),
    (value(0x11, "B", 255), "VT_UI1", "255"),
    (value(0x12, "H", 65_535), "VT_UI2", "65535"),
    (value(0x13, "I", 4_294_967_295), "VT_UI4", "4294967295"),
    (value(0x14, "q", -(1 << 63)), "VT_I8", "-9223372036854775808"),
    (value(0x15, "Q", (1 << 64) - 1), "VT_UI8", "18446744073709551615"),
    (value(0x16, "i", -7), "VT_INT", "-7"),
    (value(0x17, "I", 7), "VT_UINT", "7"),
]


def array(vt: int, kind: int, form: str, *numbers: float) -> Writer:
    """Return a writer of a VARIANT with an array of numbers."""
    body = safearray(kind, numbers, features=0x80, element=vt, write=numbers_of(form, *numbers))
    return value(0x2000 | vt, body=body, pointers=2)


def array_of(kind: int, *elements: Writer | None, bounds: list[tuple[int, int]] | None = None) -> Writer:
    """Return a writer of a VARIANT with an array of strings or VARIANTs."""
    body = safearray(kind, elements, features=0x100 if kind == 8 else 0x880, bounds=bounds, write=pointed(*elements))
    return value(0x2000 | kind, body=body, pointers=2)


STRUCTURES: list[Argument] = [
    (array(0x03, 3, "i", 1, -2, 3), "VT_ARRAY|VT_I4", "[1,-2,3]"),
    (array(0x11, 0x10, "B", 0, 255), "VT_ARRAY|VT_UI1", "[0,255]"),
    (array(0x0B, 2, "H", 0xFFFF, 0), "VT_ARRAY|VT_BOOL", "[true,false]"),
    (array(0x05, 0x14, "d", 2.25), "VT_ARRAY|VT_R8", "[2.25]"),
    (array(0x06, 0x14, "q", 10_001), "VT_ARRAY|VT_CY", '["1.0001"]'),
    (array(0x07, 0x14, "d", 46_347.25), "VT_ARRAY|VT_DATE", '["2026-11-21T06:00:00"]'),
    (array_of(8, bstr("A-17"), None, bstr("B-4")), "VT_ARRAY|VT_BSTR", '["A-17",null,"B-4"]'),
    (array_of(0xC, value(3, "i", 1), string("x"), array(2, 2, "h", 1, 2)), "VT_ARRAY|VT_VARIANT",
     '[{"VT_I4":1},{"VT_BSTR":"x"},{"VT_ARRAY|VT_I2":[1,2]}]'),
    (array_of(8, bstr("c"), bstr("d"), bounds=[(2, -1)]), "VT_ARRAY|VT_BSTR",
     '{"sizes":[2],"lower_bounds":[-1],"elements":["c","d"]}'),
    (value(9, body=persisted_object(), pointers=1), "VT_DISPATCH", f'{{"clsid":"{CLSID}","bytes":16}}'),
    (value(0x0D, body=persisted_object(stream=b"state of a cart."), pointers=1), "VT_UNKNOWN",
     f'{{"clsid":"{CLSID}","bytes":16}}'),
    (value(9, "I", 0), "VT_DISPATCH", None),  # Nothing
    (value(0x24, body=comqc.brecord(bytes(range(10))), pointers=1), "VT_RECORD",
     f'{{"type":"{RECORD_TYPE}","library":"{RECORD_LIBRARY}","version":"1.2","fields":"00010203040506070809"}}'),
]  # fmt: skip
REFERENCES: list[Argument] = [
    (value(0x4003, "i", 5, pointers=1), "VT_BYREF|VT_I4", "5"),
    (string("out", vt=0x4008, pointers=2), "VT_BYREF|VT_BSTR", "out"),
    (value(0x400C, body=lambda ndr: variant(ndr, 7, "d", 46_347.25), pointers=2), "VT_BYREF|VT_VARIANT",
     '{"VT_DATE":"2026-11-21T06:00:00"}'),
    (value(0x6002, body=safearray(2, (4, 5), features=0x80, element=2, write=numbers_of("h", 4, 5)), pointers=3),
     "VT_BYREF|VT_ARRAY|VT_I2", "[4,5]"),
]  # fmt: skip


def dispatch(
    arguments: list[Argument], dispid: int, *, interface: bool = False, by_reference: bool = False, **options: Any
) -> tuple[bytes, dict[str, Any]]:
    """Return the header of a call of IDispatch::Invoke and what it says; with the ``interface`` it is a METH."""
    writers = [write for write, _, _ in reversed(arguments)]
    if by_reference:
        data = comqc.invoke([value(0)] * len(writers), dispid=dispid, references=list(enumerate(writers)), **options)
    else:
        data = comqc.invoke(writers, dispid=dispid, **options)
    told = {"interface_id": "00020400-0000-0000-c000-000000000046", "opnum": 6, "dispatch_id": dispid,
            "arguments": [[kind, text] for _, kind, text in arguments]}  # fmt: skip
    return comqc.method(data, iid=IDISPATCH if interface else None), told


def vtable(data: bytes, opnum: int, *, interface: bool = False) -> tuple[bytes, dict[str, Any]]:
    """Return the header of a call of a component's own interface and what it says."""
    told = {"interface_id": str(IID), "opnum": opnum, "dispatch_id": None, "arguments": None}
    return comqc.method(data, opnum=opnum, iid=IID if interface else None), told


def caller(name: str, number: int, *, level: int = 6) -> bytes:
    """Return a caller's collection of Security Data: by NTLM, impersonated."""
    properties = ((0x0B01, sid(21, 7001, 7002, 7003, number)), (0x0B02, (name + "\0").encode("utf-16-le")),
                  (0x0B03, 0x0A), (0x0B04, level), (0x0B05, 3))  # fmt: skip
    return comqc.security_collection(0x0A02, *(comqc.security_property(*each) for each in properties))


CHAIN = comqc.security_collection(0x0A01, comqc.security_property(0x0B10, 4))
ANNA = comqc.security_data(CHAIN, caller("CORP\\anna", 1001))
NIGHT = comqc.security_data(CHAIN, caller("CORP\\night", 1002, level=4), caller("CORP\\anna", 1001))  # for anna
COMPONENTS = ("billing", *(f"billing_{number}" for number in range(5)), "billing_deadqueue")


def component(number: int, label: str, *headers: bytes) -> Message:
    """Return a message with recorded calls, as a recorder sends it."""
    return Message(
        comqc.message(*headers), label, comqc.MARKER, destination="OS:srv1\\private$\\billing", number=number,
        sent=SENT + number, transaction=number, sender=sid(21, 7001, 7002, 7003, 1001), journaling=1,
    )  # fmt: skip


async def queued_components(world: World) -> None:
    """Recorded COM+ calls are read over both protocols; one fails and goes through the retry queues."""
    await world.do(lambda manager: [manager.add(f"private$\\{name}", transactional=True) for name in COMPONENTS])
    anna, night = {"caller_name": "CORP\\anna", "callers": 1}, {"caller_name": "CORP\\night", "callers": 2}
    partition, nowhere = {"partition_id": str(PARTITION)}, {"partition_id": None}
    container = comqc.chdr()
    calls = (
        dispatch(VALUES, 1, interface=True), dispatch(MORE_VALUES, 2), dispatch(STRUCTURES, 3),
        dispatch(REFERENCES, 4, by_reference=True),
    )  # fmt: skip
    typed = component(2001, "all types", container, comqc.part(), comqc.secd(ANNA), *(header for header, _ in calls))
    await world.send("private$\\billing", typed, calls=[told | anna | partition for _, told in calls])
    own, later = vtable(b"\1\0\0\0\2\0\0\0", 9, interface=True), vtable(b"\3\0\0\0", 10)
    put = dispatch([(string("paid"), "VT_BSTR", "paid")], 12, interface=True, flags=4, named=(-3,))
    mixed = component(
        2002, "several callers", container, comqc.secd(ANNA), own[0], comqc.secd(NIGHT), later[0],
        comqc.secr(len(container)), put[0], comqc.part(),
    )  # fmt: skip
    await world.send(
        "private$\\billing",
        mixed,
        calls=[own[1] | anna | partition, later[1] | night | partition, put[1] | anna | partition],
    )
    printed = dispatch([(string("invoice 4711"), "VT_BSTR", "invoice 4711"), VALUES[3]], 31, interface=True)
    failing = component(2003, "never played", container, comqc.secd(NIGHT), printed[0])
    await world.send("private$\\billing", failing, calls=[printed[1] | night | nowhere])
    wrong = component(2004, "no security header", container, printed[0])
    await world.send("private$\\billing", wrong, calls=[], rejected="[MC-COMQC] 2.2.4")

    def move(manager: Manager, source: str, target: str) -> None:
        """Do what the listener of the application does with a message that cannot be played."""
        from_queue = manager.queues[f"srv1\\private$\\{source}"]
        (stored,) = [each for each in from_queue.messages if each.message is failing]
        from_queue.remove(stored)
        failing.aborts = 0
        manager.queues[f"srv1\\private$\\{target}"].put(failing)

    async with world.client() as rpc, world.client(source=1) as other, world.client("qm2qm", source=2) as support:
        await rpc.bind(REMOTEREAD, (NDR, NDR64))
        await support.bind(QM2QM, (NDR, NDR64))
        await other.bind(QMCOMM)
        await other.bind(REMOTEREAD)
        monitor = await RemoteReader(other).open("OS:srv1\\private$\\billing", PEEK_ACCESS)
        cursor = await monitor.cursor()
        for action in (PEEK_CURRENT, PEEK_NEXT, PEEK_NEXT, PEEK_NEXT):
            check((await monitor.start(action, cursor=cursor))[1]["return"])
        check(await monitor.close_cursor(cursor))
        check(await monitor.close())
        player = await RemoteReader(rpc).open("OS:srv1\\private$\\billing")
        check((await player.receive())["return"])
        queue = await DependentReader(other, support).open("OS:srv1\\private$\\billing")
        answer = await queue.start2()
        check(answer["return"])
        check(await queue.end(answer["pphContext"]))
        for source, target in itertools.pairwise(COMPONENTS):
            if source != "billing":
                player = await RemoteReader(rpc).open(f"OS:srv1\\private$\\{source}")
            for _ in range(3):
                check((await player.receive(NACK))["return"])
                failing.aborts += 1
            await world.do(lambda manager, source=source, target=target: move(manager, source, target))
            if source == "billing":  # what is no container of calls is taken away
                check((await player.receive(ACK))["return"])
            check(await player.close())
        check(await queue.close())
        dead = await RemoteReader(rpc).open("OS:srv1\\private$\\billing_deadqueue", PEEK_ACCESS)
        check((await dead.start(PEEK_CURRENT))[1]["return"])
        check(await dead.close())
        dead_too = await DependentReader(other, support).open("OS:srv1\\private$\\billing_deadqueue", PEEK_ACCESS)
        check((await dead_too.start(PEEK_CURRENT))["return"])
        check(await dead_too.close())


async def lookups(world: World) -> None:
    """Every lookup action on both protocols, from the first message to the last one, allowed and refused."""
    await world.do(lambda manager: manager.add("private$\\parcels"))
    for number, priority in enumerate((3, 3, 6, 3, 0, 6), start=2101):  # queue order is not the order of arrival
        parcel = Message(b"parcel %d" % number, f"parcel {number}", priority=priority, number=number,
                         sent=SENT + number, destination="OS:srv1\\private$\\parcels")  # fmt: skip
        await world.send("private$\\parcels", parcel)
    name = "OS:srv1\\private$\\parcels"
    async with world.client() as rpc, world.client(source=1) as other, world.client("qm2qm", source=2) as support:
        await rpc.bind(REMOTEREAD, (NDR, NDR64))
        await other.bind(QMCOMM)
        await other.bind(REMOTEREAD)
        await support.bind(QM2QM)
        reader = await RemoteReader(rpc).open(name)

        async def look(action: int, lookup: int, due: int = 0, **options: Any) -> tuple[int, int]:
            request, answer = await reader.start(action, lookup=lookup, **options)
            check(answer["return"], due)
            return request, answer["pSequenceId"]

        at = (await reader.start(PEEK_CURRENT))[1]["pSequenceId"]
        walk = [at]
        for _ in range(5):
            at = (await look(LOOKUP_PEEK[1], at))[1]
            walk.append(at)
        await look(LOOKUP_PEEK[1], at, NOT_FOUND)
        check((await look(LOOKUP_PEEK[2], at))[1], walk[4])
        await look(LOOKUP_PEEK[2], walk[0], NOT_FOUND)
        check((await look(LOOKUP_PEEK[0], walk[2]))[1], walk[2])
        request, taken = await look(LOOKUP_RECEIVE[0], walk[2])
        check(taken, walk[2])
        check(await reader.end(request, ACK))
        request, taken = await look(LOOKUP_RECEIVE[1], walk[0])
        check(taken, walk[1])
        await look(LOOKUP_RECEIVE[0], walk[1], NOT_FOUND)  # this reader holds it
        check(await reader.end(request, NACK))
        request, taken = await look(LOOKUP_RECEIVE[2], walk[5])
        check(taken, walk[4])
        check(await reader.end(request, ACK))
        for action in (*LOOKUP_PEEK, *LOOKUP_RECEIVE):
            await look(action, walk[2], NOT_FOUND)  # it is gone
        # refused: no number, a number without a lookup, a time to wait, a cursor, and a handle that only peeks
        await look(LOOKUP_PEEK[1], 0, INVALID)
        await look(RECEIVE, walk[0], INVALID)
        await look(LOOKUP_RECEIVE[0], walk[0], INVALID, timeout=100)
        cursor = await reader.cursor()
        await look(LOOKUP_PEEK[0], walk[0], INVALID, cursor=cursor)
        check(await reader.close_cursor(cursor))
        peeker = await RemoteReader(other).open(name, PEEK_ACCESS)
        check((await peeker.start(LOOKUP_RECEIVE[0], lookup=walk[0]))[1]["return"], DENIED)
        check((await peeker.start(LOOKUP_PEEK[0], lookup=walk[0]))[1]["return"])
        check(await peeker.close())
        # over qm2qm, where there are numbers for the first and the last message
        queue = await DependentReader(other, support).open(name)
        for action, lookup, due in (
            (LOOKUP_PEEK[1], FIRST, walk[0]), (LOOKUP_PEEK[2], LAST, walk[5]), (LOOKUP_PEEK[0], walk[3], walk[3]),
            (LOOKUP_PEEK[1], walk[0], walk[1]), (LOOKUP_PEEK[2], walk[1], walk[0]),
        ):  # fmt: skip
            answer = await queue.lookup(action, lookup)
            check(answer["return"])
            check(answer["lpRemoteReadDesc2"]["SequentialId"], due)
        for action, lookup in (
            (LOOKUP_PEEK[1], walk[5]), (LOOKUP_PEEK[2], walk[0]), (LOOKUP_PEEK[0], walk[2]),
            (LOOKUP_RECEIVE[0], walk[2]), (LOOKUP_RECEIVE[1], walk[5]), (LOOKUP_RECEIVE[2], walk[0]),
        ):  # fmt: skip
            check((await queue.lookup(action, lookup))["return"], NOT_FOUND)
        check((await queue.lookup(RECEIVE, walk[0]))["return"], INVALID)
        for action, lookup, due, ack in (
            (LOOKUP_RECEIVE[1], FIRST, walk[0], ACK), (LOOKUP_RECEIVE[2], LAST, walk[5], NACK),
            (LOOKUP_RECEIVE[0], walk[3], walk[3], ACK),
        ):  # fmt: skip
            answer = await queue.lookup(action, lookup)
            check(answer["return"])
            check(answer["lpRemoteReadDesc2"]["SequentialId"], due)
            check(await queue.end(answer["pphContext"], ack))
        for item in (queue, reader):
            check(await item.close())


def over_http(number: int) -> Message:
    """Return a message that came over HTTP: SOAP envelope and MIME parts."""
    url = "http://srv1/msmq/private$/mixed"
    envelope = (
        '<se:Envelope xmlns:se="http://schemas.xmlsoap.org/soap/envelope/" xmlns="http://schemas.xmlsoap.org/srmp/">'
        '<se:Header><path xmlns="http://schemas.xmlsoap.org/rp/" se:mustUnderstand="1"><action>MSMQ:order</action>'
        f"<to>{url}</to><id>uuid:{number}@5f0c2b1a-9d3e-4c77-8a10-000102030405</id></path></se:Header>"
        "<se:Body></se:Body></se:Envelope>"
    )
    body = b"<order number='%d'/>" % number
    post = (
        b"--MSMQ - SOAP boundary, 17\r\nContent-Type: text/xml; charset=UTF-8\r\n\r\n" + envelope.encode()
        + b"\r\n--MSMQ - SOAP boundary, 17\r\nContent-Type: application/octet-stream\r\n\r\n" + body
        + b"\r\n--MSMQ - SOAP boundary, 17--\r\n"
    )  # fmt: skip
    return Message(body, "over HTTP", number=number, sent=SENT + number, destination=url, envelope=envelope, post=post)


async def kinds_of_messages(world: World) -> None:
    """Signed and encrypted messages, one that came over HTTP, and dead letters, read over both protocols."""
    await world.do(lambda manager: [manager.add(f"private$\\{name}") for name in ("mixed", "rejects")])
    await world.do(lambda manager: manager.add("system$;deadletter"))
    noise = random.Random(7).randbytes  # signatures and what is encrypted: the same octets every time
    key = bytes.fromhex("010200001066000000a40000") + noise(256)
    encrypted = {"session_key": key, "privacy": 5, "cipher": 0x6610}
    common = {"sender": sid(21, 7001, 7002, 7003, 1003), "destination": "OS:srv1\\private$\\mixed"}
    for message in (
        Message(b"signed order", "signed", number=2201, certificate=noise(611), signature=noise(128),
                hash_algorithm=0x800E, **common),
        Message(noise(64), "encrypted", number=2202, **encrypted, **common),
        Message(noise(272), "encrypted calls", comqc.MARKER, number=2203, **encrypted, **common),
        over_http(2204),
    ):  # fmt: skip
        message.sent = SENT + message.number
        await world.send("private$\\mixed", message)
    far = {"destination": "OS:far\\private$\\inbox", "journaling": 1, "message_class": 0x8002, "time_to_reach": 60}
    for queue, message in (
        ("system$;deadletter", Message(b"late", "too late", number=2205, **far)),
        ("private$\\rejects", Message(b"later", "own dead letters", number=2206,
                                      dead_letter="srv1\\private$\\rejects", **far)),
    ):  # fmt: skip
        message.sent = SENT + message.number
        await world.send(queue, message)
    system = QueueFormat(DIRECT, "OS:srv1\\SYSTEM$;DEADLETTER", 0x82)
    async with world.client() as rpc, world.client(source=1) as app, world.client("qm2qm", source=2) as support:
        await rpc.bind(REMOTEREAD, (NDR, NDR64))
        await app.bind(QMCOMM)
        await support.bind(QM2QM)
        for name, count in (("OS:srv1\\private$\\mixed", 4), (system, 1), ("OS:srv1\\private$\\rejects", 1)):
            reader = await RemoteReader(rpc).open(name)
            queue = await DependentReader(app, support).open(name, PEEK_ACCESS)
            for _ in range(count):
                check((await queue.start2(PEEK_CURRENT))["return"])
                answer = await reader.receive(NACK, max_body=10, max_compound=200)  # the bodies are cut
                check(len(answer["ppPacketSections"]), 1 if name is system or count == 1 else 2)
                check((await reader.receive())["return"])
            check(await queue.close())
            check(await reader.close())
