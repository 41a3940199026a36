"""For each rule a story that breaks it, and a similar one that does not: (violating, innocent) by rule id."""

from __future__ import annotations

import struct

from findings.exchanges import (
    BY_CLIENT,
    CANCELLED,
    FAILED,
    H2,
    L_NEXT,
    L_PEEK,
    L_PREV,
    L_RECEIVE,
    NUMBER,
    OTHER,
    PEEK,
    PEEK_NEXT,
    READ2,
    SILENT,
    TIMEOUT,
    UOW,
    Story,
    app,
    call,
    connection,
    error,
    moves,
    name,
    qc,
    qm,
    qm_cancel,
    qm_close,
    qm_end,
    qm_open,
    qm_peek,
    qm_start,
    qm_version,
    remote,
    rr,
    rr_cancel,
    rr_class,
    rr_close,
    rr_end,
    rr_enlist,
    rr_move,
    rr_open,
    rr_start,
    rr_target,
    rr_tx,
    session,
    us,
)  # fmt: skip
from udfs.comqc import container_layout
from udfs.comqc.container_layout import (
    BAD_FLAGS,
    DEVIATION_TEXTS,
    INTERFACE_REPEATED,
    REFERENCE_NOT_NEEDED,
    SECURITY_REPEATED,
    TARGET_STRING_DIFFERS,
)

ZERO = "00000000-0000-0000-0000-000000000000"
HELD = bytes([1]) * 24
WAITS = {"timeout_ms": 0xFFFFFFFF}
NO_DESCRIPTOR = dict.fromkeys(("queue_handle", "queue_descriptor", "action", "timeout_ms", "request_id"))


def one(row):
    """A story of one call."""
    return Story([row])


def bind(interface="RemoteRead", syntax="NDR", result="accepted", *, context=0, at=-5.0, offered=None, **more):
    row = {"connection_id": "c1", "context_id": context, "interface_name": interface, "transfer_syntax": syntax,
           "transfer_syntaxes_offered": offered or [syntax], "result": result, "bound_at": us(at)}  # fmt: skip
    return row | more


def desc(at, **numbers):
    """The first bytes of a stub with a REMOTEREADDESC at an offset; its numbers by their offset in it."""
    stub = bytearray(at + 48)
    for place, number in numbers.items():
        struct.pack_into("<I", stub, at + int(place[1:]), number)
    return bytes(stub)


def rpc():
    yield "P01", Story(remote(rr_start(context_id=3), rr_end()), binds=[bind()]), Story(remote(), binds=[bind()])
    waiting = rr_start(1, TIMEOUT, answer=8, call_id=5)
    yield "P02", remote(waiting, rr(6, 2, call_id=5)), remote(waiting, rr(6, 8.5, call_id=5))
    yield "P03", one(rr(1, 1, None, fault=0x1C010002)), one(rr(6, 1))
    yield "P04", one(rr(16, 1, None)), one(rr(16, 1, None, fault=0x1C010002))
    cut = {"errors": error("request", "dwAck", "truncated")}
    yield "P05", one(rr_end(**cut)), one(rr_end(hresult=None, fault=0x6F7, **cut))
    yield (
        "P06",
        one(qm(2, 1, mqs=17, **dict.fromkeys(("queue_descriptor", "open_context"), 28), context_handle=H2)),
        one(qm(2, 1, FAILED, mqs=16)),
    )
    null = {"errors": error("request", "apVar[0].pElems")}
    yield "P07", one(call("qmmgmt", 0, 1, **null)), one(call("qmmgmt", 0, 1, None, fault=0x6F7, **null))
    wide = [bind("qmmgmt", "NDR"), bind("qmmgmt", "NDR64", context=1)]
    yield "P08", Story([call("qmmgmt", 1, 1)], binds=wide), Story([call("qmmgmt", 1, 1)], binds=wide[:1])
    refused = bind(result="rejected", reason=2)
    taken = bind(syntax="NDR64", context=1)
    yield "P09", Story([], binds=[refused]), Story([], binds=[refused, taken])
    yield "P10", session(rr(6, 3)), session(rr(6, 3, None, fault=0x1C00001A))
    yield "P11", remote(rr(6, 3, context_handle=H2)), remote(rr(6, 3, None, fault=0x1C00001A, context_handle=H2))
    yield "P12", one(call("qmmgmt", 1, 1, None, fault=0xC00E0006)), one(call("qmmgmt", 1, 1, None, fault=0x5))
    yield "P13", one(qm(5, 1, None, fault=0xC00E0007)), one(qm(6, 1, None, fault=0xC00E0007))
    yield "P14", one(rr_open(handle=None)), one(rr_open(handle=None, fault=0xC00E0003))
    yield "P15", one(qm(4, 1, 0x400E03E9)), session(qm_start(1, BY_CLIENT, answer=3), qm_cancel(2.9))


def reads_of_qm2qm():
    yield "Q01", one(qm_start(opnum=0, request_head=desc(0, _16=9))), one(qm_start(opnum=0, request_head=desc(0)))
    yield "Q02", one(qm_start(request_bytes=72)), one(qm_start())
    yield "Q03", one(qm_start(packet_bytes=0x420001)), one(qm_start(packet_bytes=0x420000))
    yield "Q04", one(qm_start(packet_bytes=None)), one(qm_start())
    yield "Q05", one(qm_start(action=L_PEEK)), one(qm_peek())
    yield "Q06", one(qm_start(opnum=10, action=PEEK)), one(qm_start(opnum=10, action=L_NEXT))
    yield "Q07", one(qm_start(1, 0xC000000D, action=PEEK_NEXT)), one(qm_start(action=PEEK_NEXT, cursor_handle=3))
    yield "Q08", session(qm_start(1, FAILED, queue_descriptor=29)), session(qm_start(), qm_end())
    first = qm_start(1, TIMEOUT, answer=5)
    yield "Q09", session(first, qm_start(2), qm_end(3)), session(first, qm_start(2, FAILED))
    yield "Q10", session(first, qm_start(2, FAILED)), session(first, qm_start(2, request_id=8), qm_end(3))
    yield "Q11", session(qm_start(queue_handle=99), qm_end()), session(qm_start(1, FAILED, queue_handle=99))
    cursor = qc(4, 0.3, queue_handle=NUMBER, cursor_handle=3, connection_id="app")
    peek = {"action": PEEK_NEXT, "cursor_handle": 3}
    known, given = [name()], [name(), cursor]
    yield "Q12", Story(session(qm_start(**peek)), others=known), Story(session(qm_start(**peek)), others=given)
    yield (
        "Q13",
        Story(session(qm_start(1, 0xC000000D, **peek)), others=known),
        Story(session(qm_start(**peek)), others=given),
    )
    yield "Q14", one(qm_start(remote_read_handle=None)), one(qm_start())
    yield "Q15", one(qm_peek(remote_read_handle=READ2)), one(qm_peek())
    yield "Q16", session(qm_start()), session(qm_start(), qm_end())
    yield "Q17", session(qm_peek(), qm_end(2, 0xC00E0007, remote_read_handle=None)), session(qm_peek())
    yield "Q18", session(qm_start(), qm_end(), qm_end(3, 0xC00E0007)), session(qm_start(), qm_end())
    yield "Q19", one(qm_end(remote_read_handle=None)), one(qm_end(2, 0xC00E0007, remote_read_handle=None))
    yield "Q20", one(qm_end(2, None, fault=0x6F7, ack=3)), one(qm_end(ack=1))
    yield "Q21", one(qm_end(response_head=HELD)), one(qm_end())
    yield "Q22", session(qm_start(), qm_end(), qm_peek(3)), session(qm_start(), qm_end(ack=1), qm_peek(3))
    nacked = (qm_start(), qm_end(ack=1))
    yield "Q23", session(*nacked, qm_start(3, message=6), qm_end(4)), session(*nacked, qm_start(3), qm_end(4))
    second = {"remote_read_handle": READ2, "request_id": 8}
    ends = (qm_end(4), qm_end(5, remote_read_handle=READ2))
    yield (
        "Q24",
        session(qm_start(), qm_start(2, **second), *ends),
        session(qm_start(), qm_start(2, message=6, **second), *ends),
    )
    yield (
        "Q25",
        session(qm_start(), qm_end(ack=1), qm_end(3)),
        session(qm_start(), qm_end(ack=1), qm_end(3, 0xC00E0051)),
    )


def sessions():
    zero = {"queue_descriptor": 0}
    yield "Q26", one(qm_open(0.2, FAILED, **zero)), one(qm_open())
    two = {"queue_descriptor": 29}
    yield "Q27", session(first=qm_open(**two)), [qm_version(), qm_open(0.2, FAILED, **two)]
    old = qm(8, 0.1, None, fault=0x1C010002)
    yield (
        "Q28",
        Story([old, qm_open(queue_handle=99), qm_close()], others=[name()]),
        Story([old, qm_open(), qm_close()], others=[name()]),
    )
    yield "Q29", one(qm_open(context_handle=None)), one(qm_open())
    yield "Q30", Story(session(first=qm_open(0.2, **two)), others=[name()]), Story(session(), others=[name()])
    yield "Q31", one(qm_open(mqs=2)), one(qm_open(mqs=0))
    yield "Q32", session(qm_open(3, client_id=OTHER, context_handle=H2), qm_close(4, context_handle=H2)), session()
    port = qm(7, 0.05, None, port_type=0, returned_port=2114)
    yield "Q33", [port, *session()], [port, *session(first=qm_open(server_port=2114))]
    yield (
        "Q34",
        Story([qm_open(0, SILENT)], last=400.0, closed=None),
        Story([qm_open(0, SILENT, cancelled_at=us(300))], last=400.0, closed=None),
    )
    yield (
        "Q35",
        session(qm_start(1, FAILED, queue_handle=99)),
        session(qm_start(1, TIMEOUT, answer=31.2), last=qm_close(40)),
    )
    yield "Q36", one(qm_close(context_handle=None)), one(qm_close(9, 0xC00E0007, context_handle=None))
    yield "Q37", one(qm_close(response_head=HELD)), one(qm_close())
    parked = qm_start(1, SILENT, **WAITS)
    done = qm_start(1, CANCELLED, answer=9.002, **WAITS)
    yield "Q38", session(parked), session(done)
    yield "Q39", [qm_version(), qm_open()], session()
    others = [name(), qc(4, 0.3, queue_handle=NUMBER, cursor_handle=3, connection_id="app")]
    shut, again = (qm(4, at, result, queue_handle=NUMBER, cursor_handle=3) for at, result in ((3, 0), (4, 0xC00E0007)))
    yield "Q40", Story(session(shut, again), others=others), Story(session(shut), others=others)
    walk = qm_start(1, action=PEEK_NEXT, cursor_handle=3)
    yield "Q41", session(walk), session(walk, qm(4, 3, queue_handle=NUMBER, cursor_handle=3))
    waiting = qm_start(1, BY_CLIENT, answer=2.002)
    yield "Q42", session(waiting, qm_cancel(2, queue_descriptor=0)), session(waiting, qm_cancel(2))
    yield "Q43", session(qm_start(), qm_end(), qm_cancel(3)), session(qm_start(), qm_end(), qm_cancel(3, 0xC00E0007))
    late = qm_start(1, TIMEOUT, answer=5)
    yield "Q44", session(late, qm_cancel(2, request_id=8)), session(late, qm_cancel(2, 0xC00E0001, request_id=8))
    yield "Q45", session(late, qm_cancel(2, 0xC00E0001, request_id=8)), session(waiting, qm_cancel(2))
    yield "Q46", session(qm_start(1, answer=5), qm_cancel(2), qm_end(6)), session(waiting, qm_cancel(2))
    peek = qm_peek(1, SILENT, **WAITS)
    yield (
        "Q47",
        Story(session(peek, qm_cancel(2), last=qm_close(9, SILENT)), closed=None, last=20.0),
        session(qm_peek(1, 0xC0000225, answer=2.001), qm_cancel(2)),
    )
    yield "Q48", session(qm(6, 3, queue_handle=99)), session(qm(6, 3, None, fault=0xC00E0007, queue_handle=99))
    purge = qm(6, 3, queue_handle=NUMBER)
    yield "Q49", session(qm_peek(), purge, qm_peek(4)), session(qm_peek(), purge, qm_peek(4, message=6))


def ports_and_versions():
    yield "Q50", one(qm(7, 1, None, fault=0x6F7, port_type=4)), one(qm(7, 1, None, port_type=1, returned_port=2105))
    yield (
        "Q51",
        [qm_version(), qm(7, 1, None, port_type=2, returned_port=2103)],
        [qm_version(), qm(7, 1, None, port_type=2, returned_port=0)],
    )
    yield (
        "Q52",
        one(qm(7, 1, None, port_type=0, returned_port=2105)),
        one(qm(7, 1, None, port_type=0, returned_port=2125)),
    )
    yield "Q53", one(qm(7, 1, None, fault=5, port_type=0)), one(qm(7, 1, None, fault=0x1C010014, port_type=0))
    yield "Q54", one(qm_version(major=4)), one(qm_version(major=5, minor=2, build=3790))
    asked = [qm_open(), qm_start(), qm_end(), qm_close()]
    yield "Q55", asked, [qm_version(), *asked]
    yield "Q56", session(qm_start(opnum=0), qm_end()), session(qm_start(), qm_end())


def descriptors():
    yield "Q57", one(qm_start(1, 0xC00E0007, **NO_DESCRIPTOR)), one(qm_start())
    yield "Q58", one(qm_start(request_head=bytes(8) + b"\7" + bytes(52))), one(qm_start(request_head=bytes(60)))
    yield "Q59", one(qm_start(message=1 << 56)), one(qm_start(1, TIMEOUT, answer=31))
    yield "Q60", one(qm_start(opnum=10, message=6)), one(qm_start(opnum=10, lookup_id=(3 << 56) + 5))
    yield "Q61", one(qm_start(opnum=10, timeout_ms=5)), one(qm_start(1, FAILED, opnum=10, timeout_ms=5))
    yield "Q62", one(qm_start(1, FAILED, opnum=10, cursor_handle=3)), one(qm_start(opnum=10))
    yield "Q63", one(qm_start(1, FAILED, opnum=10, lookup_id=0)), one(qm_start(opnum=10, lookup_id=0, action=L_NEXT))
    yield "Q64", one(qm_start(1, TIMEOUT, answer=40)), one(qm_start(1, TIMEOUT, answer=31.5))
    yield "Q65", one(qm_start(arrived_at=None)), one(qm_start())
    yield "Q66", session(qm_start(auth_level=None), qm_end()), session(qm_start(), qm_end())
    yield "Q68", session(qm_start(), qm_end(ack=1)), session(qm_start(), qm_end())
    came = desc(40, _0=NUMBER, _24=8)
    asked = desc(16, _0=NUMBER, _24=7)
    yield (
        "Q69",
        one(qm_start(request_head=asked, response_head=came)),
        one(qm_start(request_head=asked, response_head=desc(40, _0=NUMBER, _24=7))),
    )


def opening():
    yield "R01", one(rr_open(queue_format_type=7, fault=0xC00E0006, handle=None)), one(rr_open())
    yield (
        "R02",
        one(rr_open(queue_format_name="DIRECT=HTTP://srv1/msmq/q", fault=0xC00E0006, handle=None)),
        one(rr_open(queue_format_name="DIRECT=tcp:10.0.0.1\\private$\\q")),
    )
    yield (
        "R03",
        one(rr_open(request_head=bytes([1, 0x82]), queue_format_type=1)),
        one(rr_open(request_head=bytes([3, 0x81]))),
    )
    yield "R04", one(rr_open(access=2, fault=0xC00E0006, handle=None)), one(rr_open(access=0x20, share_mode=1))
    tail = struct.pack("<IBBHI", 2, 6, 1, 7601, 0)
    yield "R05", one(rr_open(request_tail=tail)), one(rr_open())
    yield "R06", one(rr_open(version_major=7)), one(rr_open(version_major=5, version_minor=2))
    yield "R07", one(rr_open(access=2)), one(rr_open(access=2, fault=0xC00E0006, handle=None))
    alone = {"access": 1, "share_mode": 1}
    twice = {"handle": H2, "connection_id": "c2"}
    both = [connection(closed=20.0), connection("c2", closed=20.0)]
    first = [rr_open(**alone), rr_close()]
    yield (
        "R08",
        Story([*first, rr_open(2, **twice), rr_close(5, context_handle=H2, connection_id="c2")], connections=both),
        Story([*first, rr_open(10, **twice), rr_close(12, context_handle=H2, connection_id="c2")], connections=both),
    )
    yield "R09", remote(rr_open(2)), remote(rr_open(2, handle=H2), rr_close(3, context_handle=H2))
    yield "R10", remote(rr(6, 3, None, fault=0x1C00001A, context_handle=H2)), remote(rr(6, 3))
    yield "R11", remote(rr_close(10, None, fault=0x1C00001A)), remote()
    yield "R12", one(rr_close(response_head=HELD)), one(rr_close())
    parked = rr_start(1, SILENT, **WAITS)
    yield "R13", remote(parked), remote(rr_start(1, CANCELLED, answer=9.002, **WAITS))
    yield "R14", [rr_open()], remote()
    yield (
        "R15",
        remote(rr_start(1, CANCELLED, answer=9.002, **WAITS)),
        remote(rr_start(1, TIMEOUT, answer=8, timeout_ms=7000)),
    )
    cursor, shut = rr(4, 1, cursor_handle=3), rr(5, 3, cursor_handle=3)
    yield "R16", remote(cursor, shut, rr(5, 4, 0xC0000008, cursor_handle=3)), remote(cursor, shut)
    yield "R17", remote(cursor), remote(cursor, shut)
    peeker = rr_open(access=0x20)
    yield "R18", remote(rr(6, 1, 0xC0000022), first=peeker), remote(rr(6, 1))
    yield "R19", remote(rr_start(1, 0xC0000022), first=peeker), remote(rr_start(action=PEEK), first=peeker)
    yield "R20", remote(rr_enlist(), rr_tx(1, 0xC0000022), first=peeker), remote(rr_enlist(), rr_tx(), rr_end(opnum=15))


def reading():
    yield "R21", one(rr_start(1, FAILED, action=5)), one(rr_start())
    yield "R22", one(rr_start(1, FAILED, lookup_id=5)), one(rr_start(action=L_RECEIVE, lookup_id=5, timeout_ms=0))
    yield "R23", one(rr_start(1, FAILED, action=L_RECEIVE, timeout_ms=0)), one(rr_start(action=L_PREV, timeout_ms=0))
    yield (
        "R24",
        one(rr_start(1, FAILED, action=L_NEXT, cursor_handle=3, timeout_ms=0)),
        one(rr_start(action=PEEK, cursor_handle=3)),
    )
    yield "R25", one(rr_start(1, FAILED, action=PEEK_NEXT)), one(rr_start(action=PEEK_NEXT, cursor_handle=3))
    yield (
        "R26",
        one(rr_start(1, FAILED, action=L_NEXT, lookup_id=5)),
        one(rr_start(action=L_NEXT, lookup_id=5, timeout_ms=0)),
    )
    by_cursor = rr_start(2, action=PEEK, cursor_handle=3)
    yield "R27", remote(by_cursor), remote(rr(4, 1, cursor_handle=3), by_cursor)
    yield (
        "R28",
        remote(rr_start(), rr_start(2, FAILED), rr_end(3)),
        remote(rr_start(), rr_end(), rr_start(3), rr_end(4)),
    )
    late = rr_start(1, TIMEOUT, answer=5, timeout_ms=4000)
    yield "R29", remote(late, rr_start(2, FAILED)), remote(late, rr_start(2, request_id=8), rr_end(3, request_id=8))
    yield "R30", remote(rr_start()), remote(rr_start(), rr_end())
    yield "R31", remote(rr_enlist(), rr_tx()), remote(rr_enlist(), rr_tx(), rr_end(opnum=15))
    yield "R32", remote(rr_start(), rr_end(opnum=15)), remote(rr_start(opnum=13), rr_end(opnum=15))
    yield "R33", remote(rr_start(action=PEEK), rr_end(2, 0xC00E0007)), remote(rr_start(action=PEEK))
    yield "R34", one(rr_start(section_types=None)), one(rr_start())
    yield (
        "R35",
        one(rr_start(section_types=[2])),
        one(rr_start(section_types=[1, 2], section_bytes=[9, 9], section_allocated_bytes=[1109, 9], body_bytes=2100)),
    )
    yield "R36", one(rr_start(section_allocated_bytes=[301])), one(rr_start())
    yield "R37", one(rr_start(errors=error("response", "ppPacketSections.pSectionBuffer.max_count"))), one(rr_start())
    yield "R38", one(rr_start(body_bytes=1001)), one(rr_start(body_bytes=1000))
    cut = {"section_types": [1], "section_bytes": [300], "body_bytes": 1100}
    yield (
        "R39",
        one(rr_start(section_allocated_bytes=[399], **cut)),
        one(rr_start(section_allocated_bytes=[400], **cut)),
    )
    yield "R41", one(rr_start(message=0)), one(rr_start(action=L_RECEIVE, lookup_id=5, timeout_ms=0))
    yield "R42", one(rr_start(arrived_at=us(1000))), one(rr_start())
    yield "R43", one(rr_start(time_to_reach_queue_s=-5)), one(rr_start(time_to_reach_queue_s=None))
    yield (
        "R44",
        one(rr_start(1, TIMEOUT, answer=31, response_head=bytes(16) + b"\1" + bytes(7))),
        one(rr_start(1, TIMEOUT, answer=31, response_head=bytes(24))),
    )
    yield "R45", one(rr_start(1, TIMEOUT, answer=3)), one(rr_start(1, TIMEOUT, answer=30.2))


def ending():
    waiting = rr_start(1, CANCELLED, answer=2.002)
    yield "R46", remote(rr_start(1, TIMEOUT, answer=2, timeout_ms=1000), rr_cancel(3)), remote(waiting, rr_cancel(2))
    yield "R47", remote(rr_start(1, answer=5), rr_cancel(2), rr_end(6)), remote(waiting, rr_cancel(2))
    yield "R48", remote(rr_cancel(2, 0xC0000225)), remote(waiting, rr_cancel(2))
    yield "R49", one(rr_end(2, None, fault=0x6F7, ack=0)), one(rr_end(ack=1))
    yield "R50", remote(rr_end(2, 0xC00E0007)), remote(rr_start(), rr_end())
    other = rr_start(1.5, request_id=8)
    yield (
        "R51",
        remote(rr_start(), rr_end(2, 0xC00E0006, request_id=8), rr_end(3)),
        remote(rr_start(), other, rr_end(2, request_id=8), rr_end(3)),
    )
    again = (rr_start(3, request_id=8), rr_end(4, request_id=8))
    yield "R52", remote(rr_start(), rr_end(), *again), remote(rr_start(), rr_end(ack=1), *again)
    yield (
        "R53",
        remote(rr_start(), rr_end(), rr_start(3, action=PEEK)),
        remote(rr_start(), rr_end(ack=1), rr_start(3, action=PEEK)),
    )
    held = (rr_enlist(), rr_tx())
    yield (
        "R54",
        remote(*held, rr_start(2, request_id=8), rr_end(3, opnum=15), rr_end(4, request_id=8)),
        remote(*held, rr_start(2, request_id=8, message=6), rr_end(3, opnum=15), rr_end(4, request_id=8)),
    )
    yield "R55", remote(rr_start(), rr_end(ack=1)), remote(rr_start(), rr_end())


def moving():
    peeker = rr_open(access=0x20)
    yield "R56", remote(rr_target(), rr_move(1, FAILED), rr_close(8, context_handle=H2), first=peeker), moves(rr_move())
    yield "R57", moves(rr_move(1, 0xC00E0007, move_context=5)), moves(rr_move())
    other = rr_target(queue="srv1\\private$\\other")
    yield "R58", remote(other, rr_move(1, 0xC000000D), rr_close(8, context_handle=H2)), moves(rr_move())
    yield "R60", moves(rr_move(), rr_move(2)), moves(rr_move(), rr_move(2, 0xC00E0088))
    uow = {"transaction_id": UOW}
    yield "R61", moves(rr_move(1, 0xC00E0051, **uow)), moves(rr_enlist(), rr_move(1, **uow))
    yield "R62", moves(rr_target(0.7, handle="ee" * 20, access=1), rr_close(8, context_handle="ee" * 20)), moves()
    yield "R63", moves(rr_target(0.7, handle="ee" * 20, move_context=0), rr_close(8, context_handle="ee" * 20)), moves()
    yield "R64", remote(rr_tx(1, FAILED)), remote(rr_enlist(), rr_tx(), rr_end(opnum=15))
    yield "R65", one(rr(0, 1, None, returned_port=2104)), one(rr(0, 1, None, returned_port=2114))
    peek = {"action": PEEK}
    yield "R66", remote(rr_enlist(), rr_tx(**peek)), remote(rr_enlist(), rr_tx(1, 0xC00E0050, **peek))
    yield "R67", remote(rr_enlist(), rr_tx(1, 0xC00E0050, **peek)), remote(rr_start(opnum=13, **peek))
    tx = (rr_enlist(), rr_tx(), rr_end(opnum=15))
    yield "R68", remote(*tx, rr_class(3, acknowledgement_class=0x8000)), remote(*tx, rr_class(3))
    yield "R69", remote(*tx, rr_class(1.5)), remote(*tx, rr_class(3))
    yield "R70", remote(*tx, rr_class(3, lookup_id=9)), remote(*tx, rr_class(3, 0xC00E0088, lookup_id=9))


def times_and_levels():
    yield "R71", one(rr_open(0, answer=400)), one(rr_open(0, answer=300.5))
    late = {"connections": [connection(closed=500.0)]}
    yield (
        "R72",
        Story(remote(rr_start(), rr_end(400), last=rr_close(450)), **late),
        Story(remote(rr_start(), rr_end(290), last=rr_close(450)), **late),
    )
    dead = {"handle": H2, "connection_id": "old", "client_address": "10.0.0.9"}
    before = connection("old", closed=-4.0, client_address="10.0.0.9")
    ours = connection(closed=20.0)
    stale = rr(6, 3, context_handle=H2)
    refused = rr(6, 3, None, fault=0x1C00001A, context_handle=H2)
    yield (
        "R73",
        Story(remote(stale), connections=[ours], others=[rr_open(-9, **dead)]).joined(before),
        Story(remote(refused), connections=[ours], others=[rr_open(-9, **dead)]).joined(before),
    )
    modern = {"workgroup": False}
    yield "R74", remote(first=rr_open(auth_level=None, **modern)), remote(first=rr_open(**modern))
    yield "R76", one(rr_start(header_sizes={"ExtensionHeader": 16})), one(rr_start())
    wrong = [{"code": "malformed", "field": "SubqueueHeader.HeaderSize", "offset": 4}]
    yield "R77", one(rr_start(message_errors=wrong)), one(rr_start())
    old = qm_version(major=5, minor=2, build=3790)
    yield "R78", [old, *moves()], [qm_version(), *moves()]


def openings_of_applications():
    yield "C01", one(name(1, connection="c1", access=2)), one(name(1, connection="c1"))
    alone = name(0, connection="c1", share_mode=1)
    then = {
        "connection": "c2",
        "queue_handle": 29,
        "queue_descriptor": 29,
        "open_context": 29,
        "context_handle": "ee" * 20,
    }
    both = [connection(closed=20.0), connection("c2", closed=20.0)]
    yield (
        "C02",
        Story([alone, name(2, **then)], connections=both),
        Story([alone, qc(3, 1, None, context_handle=H2), name(2, **then)], connections=both),
    )
    yield "C03", one(name(1, connection="c1", open_context=29)), one(name(1, connection="c1"))
    again = then | dict.fromkeys(("queue_handle", "queue_descriptor", "open_context"), NUMBER)
    first = name(0, connection="c1")
    yield "C04", Story([first, name(2, **again)], connections=both), Story([first, name(2, **then)], connections=both)
    yield "C05", app(qc(4, 2, queue_handle=99, cursor_handle=3)), app(qc(4, 2, queue_handle=NUMBER, cursor_handle=3))
    yield "C06", app(closed=False), app()
    opened = {"queue_handle": 0, "queue_descriptor": 0, "open_context": 0, "context_handle": H2}
    asked = qc(28, 0.5)
    yield (
        "C07",
        [asked, qc(19, 1, **(opened | {"queue_descriptor": 5})), qc(20, 8, context_handle=H2)],
        [asked, qc(19, 1, **opened), qc(20, 8, context_handle=H2)],
    )
    yield "C08", one(qc(19, 1, remote_queue_name="srv2\\q", **opened)), one(qc(19, 1, **opened))
    yield (
        "C10",
        one(qc(31, 1, None, port_type=0, returned_port=2105)),
        one(qc(31, 1, None, port_type=1, returned_port=2116)),
    )
    yield "C11", one(qc(22, 1, 0xC00E0007, cursor_handle=0x0B)), one(qc(22, 1, cursor_handle=0x0B))
    yield (
        "C12",
        one(qc(9, 1, request_head=struct.pack("<III", 2, 2, 1))),
        one(qc(9, 1, request_head=struct.pack("<III", 1, 1, 1))),
    )
    yield (
        "C14",
        [qc(19, 1, **opened), qc(20, 8, context_handle=H2)],
        [asked, qc(19, 1, **opened), qc(20, 8, context_handle=H2)],
    )


def message_packets():
    number = {"transactional": True, "delivery": "recoverable", "transaction_number": 1}
    numbers = ({"previous_transaction_number": 1}, {"previous_transaction_number": 0})
    yield "T22", *(one(rr_start(**number, **previous)) for previous in numbers)
    yield "T24", one(rr_start(transactional=True, delivery="recoverable", priority=3)), one(rr_start(priority=3))
    yield "T25", one(rr_start(hop_count=0x1E)), one(rr_start(hop_count=0x1D))
    late, timely = ([rr_open(), rr_start(arrived_at=us(60.4 + seconds))] for seconds in (6, 5))
    yield "T26", late, timely
    no_limit = {"time_to_reach_queue_s": None}
    nack = {"class": 0x8002}
    yield "T27", remote(rr_start(**nack), rr_end()), remote(rr_start(**nack, **no_limit), rr_end())
    size = [{"code": "malformed", "field": "BaseHeader.PacketSize", "offset": 8}]
    yield "T30", one(rr_start(message_errors=size)), one(rr_start())
    debug = {"header_sizes": {"DebugHeader": 4}}
    yield "T31", one(rr_start(traced=True)), one(rr_start(traced=True, **debug))
    asked = {"acknowledgement_requested": 5}
    yield "T32", one(rr_start(**asked, admin_queue_type=0)), one(rr_start(**asked, admin_queue_type=7))
    yield (
        "T33",
        one(rr_start(privacy_level=5, encryption_algorithm=0x6602)),
        one(rr_start(privacy_level=5, encryption_algorithm=0x6610)),
    )


def queued_components():
    recorder = {"is_comqc": True, "source_queue_manager": "11111111-2222-3333-4444-555555555555"}

    def read(*deviations, **more):
        found = [{"rule": DEVIATION_TEXTS[number], "offset": 200, "places": 2} for number in deviations]
        return one(rr_start(**recorder, comqc_deviations=found, **more))

    yield "K01", read(comqc_rejected=container_layout.REJECTION_TEXTS[BAD_FLAGS]), read()
    yield "K02", read(INTERFACE_REPEATED, SECURITY_REPEATED), read(INTERFACE_REPEATED, TARGET_STRING_DIFFERS)
    yield "K03", read(INTERFACE_REPEATED), read(REFERENCE_NOT_NEEDED)
    yield "K04", read(TARGET_STRING_DIFFERS), read(SECURITY_REPEATED)
    yield "K05", *(read(destination_queue=f"{host}\\private$\\app") for host in ("srv1.example.com", "srv1"))


GROUPS = (rpc, reads_of_qm2qm, sessions, ports_and_versions, descriptors, opening, reading, ending, moving,
          times_and_levels, openings_of_applications, message_packets,
          queued_components)  # fmt: skip
STORIES = {rule: (violating, innocent) for group in GROUPS for rule, violating, innocent in group()}
