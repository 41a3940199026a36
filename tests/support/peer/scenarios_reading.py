"""Scenarios of the recorded clients: the first five, in the order of data/README.md."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

from peer.client import NDR, NDR64, Client, RpcFault
from peer.idl import MULTICAST, VT_NULL, QueueFormat, Variant
from peer.methods import QM2QM, QMCOMM, QMMGMT, REMOTEREAD
from peer.mgmt import machine_object, queue_object, session_object
from peer.queues import LOOKUP_PEEK, LOOKUP_RECEIVE, PEEK_CURRENT, PEEK_NEXT, RECEIVE, Queue
from peer.reading import ACK, NACK, DependentReader, RemoteReader, open_arguments
from peer.security import CONNECT, INTEGRITY, PACKET, PRIVACY, Account
from peer.server import ACCOUNT, messages
from peer.world import Impacket, World

ORDERS = "OS:srv1\\private$\\orders"
LARGE = "OS:srv1\\private$\\large"
EMPTY = "OS:srv1\\private$\\empty"
LEDGER = "TCP:10.77.0.1\\private$\\ledger"


async def expect_fault(status: int, awaitable: Awaitable[Any]) -> None:
    """Require that the call ends with this fault."""
    try:
        await awaitable
    except RpcFault as fault:
        if fault.status != status:
            raise AssertionError(f"fault 0x{fault.status:08X} where 0x{status:08X} was due") from None
    else:
        raise AssertionError(f"no fault where 0x{status:08X} was due")


def check(got: int, due: int = 0) -> None:
    """Require this HRESULT: a scenario with another result is not recorded."""
    if got != due:
        raise AssertionError(f"0x{got:08X} where 0x{due:08X} was due")


async def remoteread_ndr(world: World) -> None:
    """One reader in NDR, all steps in sequence; a second connection where two are needed."""
    async with world.client() as rpc, world.client(source=1) as other:
        await rpc.bind(REMOTEREAD)
        check((await rpc.call("R_GetServerPort"))["return"], world.server.ports["remoteread"])
        await expect_fault(0xC00E0003, rpc.call("R_OpenQueue", **open_arguments("OS:srv1\\private$\\nowhere")))
        multicast = QueueFormat(MULTICAST, {"address": 0xE1020304, "port": 8001})
        await expect_fault(0xC00E0006, rpc.call("R_OpenQueue", **open_arguments(multicast)))
        reader = await RemoteReader(rpc).open(ORDERS)
        # peeks, then receives: acknowledged, refused and received again
        _, peeked = await reader.start(PEEK_CURRENT)
        check(peeked["return"])
        for ack in (ACK, ACK, NACK, ACK):
            check((await reader.receive(ack))["return"])
        # a body cut at 100 octets comes in two sections
        answer = await reader.receive(NACK, max_body=100)
        check(len(answer["ppPacketSections"]), 2)
        # a cursor walks, a lookup peeks, receives, and misses
        cursor = await reader.cursor()
        for action in (PEEK_CURRENT, PEEK_NEXT, PEEK_NEXT):
            _, seen = await reader.start(action, cursor=cursor)
            check(seen["return"])
        check(await reader.close_cursor(cursor))
        check(await reader.close_cursor(cursor), 0xC0000008)
        _, same = await reader.start(LOOKUP_PEEK[0], lookup=seen["pSequenceId"])
        check(same["return"])
        request, taken = await reader.start(LOOKUP_RECEIVE[0], lookup=seen["pSequenceId"])
        check(taken["return"])
        check(await reader.end(request))
        check((await reader.start(LOOKUP_PEEK[0], lookup=seen["pSequenceId"]))[1]["return"], 0xC00E0088)
        check((await reader.start(RECEIVE, lookup=seen["pSequenceId"]))[1]["return"], 0xC00E0006)
        # ends that are refused: nothing pending, another id, and a message an administrator took away
        check(await reader.end(4711), 0xC00E0007)
        request, _ = await reader.start()
        check(await reader.end(4711), 0xC00E0006)
        check(await reader.end(request, NACK))
        request, answer = await reader.start()
        await world.do(lambda manager: _remove_locked(manager.queues["srv1\\private$\\orders"]))
        check(await reader.end(request), 0xC00E0088)
        # another reader may only peek; exclusive opening is refused
        await other.bind(REMOTEREAD)
        await expect_fault(0xC00E0009, other.call("R_OpenQueue", **open_arguments(ORDERS, 1, 1)))
        peeker = await RemoteReader(other).open(ORDERS, access=0x20)
        check((await peeker.start(PEEK_CURRENT))[1]["return"])
        check((await peeker.start(RECEIVE))[1]["return"], 0xC0000022)
        check(await peeker.purge(), 0xC0000022)
        check(await peeker.close())
        # an empty queue: polled, waited for, waited for and filled, waited for and cancelled
        empty = await RemoteReader(rpc).open(EMPTY)
        check((await empty.start())[1]["return"], 0xC00E001B)
        check((await empty.start(timeout=400))[1]["return"], 0xC00E001B)
        waiting = asyncio.create_task(empty.receive(timeout=5000))
        await asyncio.sleep(0.2)
        await world.put("private$\\empty", *messages(1, sizes=(200,), start=900))
        check((await waiting)["return"])
        args = empty.start_arguments(timeout=5000)
        _, pending = await rpc.send("R_StartReceive", **args)
        await asyncio.sleep(0.2)
        check(await empty.cancel(args["dwRequestId"]))
        check((await pending.future)["return"], 0xC00E0008)
        check(await empty.cancel(args["dwRequestId"]), 0xC0000225)
        # a queue closed while a receive waits on it, another while it holds a message
        _, pending = await rpc.send("R_StartReceive", **empty.start_arguments(timeout=5000))
        await asyncio.sleep(0.1)
        check(await empty.close())
        check((await pending.future)["return"], 0xC00E0008)
        holder = await RemoteReader(rpc).open(ORDERS)
        check((await holder.start())[1]["return"])
        check(await holder.close())
        # purged, then empty
        check(await reader.purge())
        check((await reader.start())[1]["return"], 0xC00E001B)
        check(await reader.close())


def _remove_locked(queue: Queue) -> None:
    for stored in list(queue.messages):
        if stored.state == "locked":
            queue.remove(stored)


async def remoteread_ndr64(world: World) -> None:
    """Three readers of one queue, each on a multiplexed connection; responses out of order, large messages."""
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for index in range(3):
            rpc = await stack.enter_async_context(world.client(source=index, fragment=(5840, 4280, 1432)[index]))
            await rpc.bind(REMOTEREAD, (NDR, NDR64), features=3)
            readers.append(rpc)
        first, second, third = readers
        # large messages: three calls wait, three messages come at once, the fragments of the answers interleave
        large = await RemoteReader(first).open(LARGE)
        check((await large.start(PEEK_CURRENT))[1]["return"])
        check(await large.purge())
        sent = [await first.send("R_StartReceive", **large.start_arguments(timeout=5000)) for _ in range(3)]
        await asyncio.sleep(0.2)
        await world.put("private$\\large", *messages(3, sizes=(90_000, 50_000, 20_000), start=700))
        answers = [await pending.future for _, pending in sent]
        for answer in answers:
            check(answer["return"])
        for request, ack in ((2, ACK), (3, NACK), (4, ACK)):
            check(await large.end(request, ack))
        check(await large.close())
        # several readers of one queue
        queues = [await RemoteReader(rpc).open(ORDERS) for rpc in readers]
        for _ in range(3):
            got = await asyncio.gather(*(queue.receive() for queue in queues))
            for answer in got:
                check(answer["return"])
        # four receives wait on one connection; messages arrive one after the other
        empty = await RemoteReader(second).open(EMPTY)
        waiting = [
            await second.send("R_StartReceive", **empty.start_arguments(timeout=4000 - 900 * n)) for n in range(4)
        ]
        peek = await second.send("R_StartReceive", **empty.start_arguments(PEEK_CURRENT, timeout=4000))
        await asyncio.sleep(0.2)
        await world.put("private$\\empty", *messages(2, sizes=(1000, 20_000), start=950))
        results = [(await pending.future)["return"] for _, pending in (*waiting, peek)]
        for request, result in enumerate(results[:4], start=1):
            if result == 0:
                check(await empty.end(request, ACK if request == 1 else NACK))
        # the third reader drops its connection while it holds a message; the first receives it again
        check((await queues[2].start())[1]["return"])
        third.abort()
        await asyncio.sleep(0.3)
        check((await queues[0].receive())["return"])
        for queue in (*queues[:2], empty):
            check(await queue.close())


async def dependent_client(world: World) -> None:
    """A dependent client opens over qmcomm, its supporting server reads over qm2qm; NDR, then NDR64."""
    for syntaxes in ((NDR,), (NDR, NDR64)):
        async with world.client() as app, world.client("qm2qm", source=1) as support:
            await app.bind(QMCOMM, syntaxes)
            check((await app.call("R_QMGetRTQMServerPort", fIP=0))["return"], world.server.ports["remoteread"])
            await expect_fault(5, app.call("R_QMGetRemoteQueueName", pQueue=5, lplpRemoteQueueName=[None]))
            await support.bind(QM2QM, syntaxes)
            check((await support.call("RemoteQMGetQMQMServerPort", dwPortType=1))["return"],
                  world.server.ports["qm2qm"])  # fmt: skip
            await support.call("RemoteQmGetVersion")
            with contextlib.suppress(OSError):
                await DependentReader(app, support).open("OS:srv1\\private$\\nowhere")
            queue = await DependentReader(app, support).open(ORDERS)
            for start in (queue.start, queue.start2):
                check((await start(PEEK_CURRENT))["return"])
                for ack in (ACK, NACK):
                    answer = await start()
                    check(answer["return"])
                    check(await queue.end(answer["pphContext"], ack))
            # a cursor, lookups, refusals
            cursor = await queue.cursor()
            seen = await queue.start2(PEEK_CURRENT, cursor=cursor)
            seen = await queue.start2(PEEK_NEXT, cursor=cursor)
            check((await queue.start2(PEEK_NEXT))["return"], 0xC000000D)
            check((await support.call("RemoteQMCloseCursor", hQueue=queue.handle, hCursor=cursor))["return"])
            check(
                (await support.call("RemoteQMCloseCursor", hQueue=queue.handle, hCursor=cursor))["return"], 0xC00E0007
            )
            lookup = seen["lpRemoteReadDesc2"]["SequentialId"]
            check((await queue.lookup(LOOKUP_PEEK[0], lookup))["return"])
            check((await queue.lookup(LOOKUP_PEEK[1], 0))["return"])
            taken = await queue.lookup(LOOKUP_RECEIVE[0], lookup)
            check(await queue.end(taken["pphContext"]))
            await expect_fault(0x1C00001A, queue.end(taken["pphContext"]))
            check((await queue.lookup(LOOKUP_RECEIVE[0], lookup))["return"], 0xC00E0088)
            # cancelled waits, time-outs, polls
            empty = await DependentReader(app, support).open(EMPTY)
            check((await empty.start2())["return"], 0xC00E001B)
            check((await empty.start2(timeout=300))["return"], 0xC00E001B)
            check(await empty.cancel(1), 0xC00E0007)
            waiting = asyncio.create_task(empty.start2(timeout=5000))
            await asyncio.sleep(0.15)
            check(await empty.cancel(99), 0xC00E0001)
            check(await empty.cancel(empty.next_request - 1))
            check((await waiting)["return"], 0x400E03E9)
            check(await empty.close())
            # purged while a message is held, then acknowledged
            held = await queue.start2()
            check((await support.call("RemoteQMPurgeQueue", hQueue=queue.handle))["return"])
            check(await queue.end(held["pphContext"]))
            check((await queue.start2())["return"], 0xC00E001B)
            await expect_fault(0xC00E0007, support.call("RemoteQMPurgeQueue", hQueue=0xFFFF))
            check(await queue.close())
            await world.put("private$\\orders", *messages(6, sizes=(300, 4000), start=500))
    # a supporting server that goes away with a message in its hands
    async with world.client() as app, world.client("qm2qm") as support:
        await app.bind(QMCOMM)
        await support.bind(QM2QM)
        queue = await DependentReader(app, support).open(ORDERS)
        check((await queue.start())["return"])
        support.abort()
        await asyncio.sleep(0.3)


async def management(world: World) -> None:
    """An administrator queries the machine and its queues, and pauses an outgoing queue."""

    async def info(rpc: Client, target: dict[str, Any], *ids: int) -> dict[str, Any]:
        empty = [Variant(VT_NULL) for _ in ids]
        return await rpc.call("R_QMMgmtGetInfo", pObjectFormat=target, cp=len(ids), aProp=list(ids), apVar=empty)

    far = "OS:far\\private$\\inbox"
    async with world.client() as rpc, world.client(source=1, verification=True) as other:
        await rpc.bind(QMMGMT, (NDR, NDR64))
        check((await info(rpc, machine_object(), *range(1, 7)))["return"])
        for name in (ORDERS, LEDGER, EMPTY, far):
            check((await info(rpc, queue_object(name), *range(1, 28)))["return"])
        check((await info(rpc, queue_object(ORDERS), 11, 7, 8))["return"])
        check((await info(rpc, queue_object("OS:srv1\\private$\\nowhere"), 7))["return"], 0xC00E0003)
        check((await info(rpc, session_object(), 1))["return"], 0xC00E0006)
        check((await info(rpc, machine_object(), 1, 9))["return"], 0xC00E0039)
        check((await info(rpc, queue_object(ORDERS), *([2] * 128)))["return"])  # an answer of several fragments
        await expect_fault(0x000006F7, info(rpc, machine_object(), *([1] * 129)))
        await other.bind(QMMGMT)

        async def act(target: dict[str, Any], word: str) -> int:
            return int((await other.call("R_QMMgmtAction", pObjectFormat=target, lpwszAction=word))["return"])

        for word in ("PAUSE", "RESUME"):
            check(await act(queue_object(far), word))
            check((await info(rpc, queue_object(far), 11, 7, 12))["return"])
        check(await act(queue_object(far), "EOD_RESEND"))
        check(await act(queue_object(ORDERS), "PAUSE"), 0xC00E0006)
        for word in ("disconnect", "connect", "tidy"):
            check(await act(machine_object(), word))
        check(await act(machine_object(), "EXPLODE"), 0xC00E0006)


async def sealed(world: World) -> None:
    """NTLM at each level, with impacket's client and with the test peer's; a wrong password."""

    def blocking(level: int) -> None:
        rpc = Impacket(world.host, world.server.ports["remoteread"], ACCOUNT, level).connect(REMOTEREAD)
        context = rpc.call("R_OpenQueue", **open_arguments(ORDERS))["pphContext"]
        reader = RemoteReader(None, context)  # type: ignore[arg-type]
        for ack in (ACK, NACK):
            args = reader.start_arguments()
            check(rpc.call("R_StartReceive", **args)["return"])
            end = {"phContext": context, "dwAck": ack, "dwRequestId": args["dwRequestId"]}
            check(rpc.call("R_EndReceive", **end)["return"])
        rpc.fragment(2000)  # requests of several fragments, each sealed for itself
        unit = {"pTransactionId": bytes([level]) * 16, "pQueueFormat": QueueFormat.direct(LEDGER)}
        token = {"cbPropagationToken": 9000, "pbPropagationToken": bytes(range(250)) * 36}
        check(rpc.call("R_QMEnlistRemoteTransaction", **unit, **token)["return"])
        check(rpc.call("R_CloseQueue", phContext=context)["return"])
        rpc.close()

    for level in (CONNECT, INTEGRITY, PRIVACY):
        await asyncio.to_thread(blocking, level)
    for level in (CONNECT, PACKET, INTEGRITY, PRIVACY):
        async with world.client(account=ACCOUNT, level=level, verification=level == PRIVACY) as rpc:
            await rpc.bind(REMOTEREAD, (NDR, NDR64) if level >= INTEGRITY else (NDR,), features=3)
            reader = await RemoteReader(rpc).open(LARGE)
            check((await reader.receive(NACK))["return"])
            empty = await RemoteReader(rpc).open(EMPTY, access=0x20)
            waits = [
                await rpc.send("R_StartReceive", **empty.start_arguments(PEEK_CURRENT, timeout=t)) for t in (300, 100)
            ]
            for _, pending in waits:
                check((await pending.future)["return"], 0xC00E001B)
            await expect_fault(0xC00E0003, rpc.call("R_OpenQueue", **open_arguments("OS:srv1\\private$\\nowhere")))
            check(await reader.close())
    async with world.client("qm2qm", account=ACCOUNT, level=PRIVACY) as support, world.client() as app:
        await support.bind(QM2QM)
        await app.bind(QMCOMM)
        queue = await DependentReader(app, support).open(ORDERS)
        answer = await queue.start2()
        check(await queue.end(answer["pphContext"]))
        check(await queue.close())
    wrong = Account(ACCOUNT.user, "not the password", ACCOUNT.domain)
    async with world.client(account=wrong, level=CONNECT) as rpc:
        await rpc.bind(REMOTEREAD)
        await expect_fault(5, rpc.call("R_GetServerPort"))
