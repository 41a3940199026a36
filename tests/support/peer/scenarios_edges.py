"""Scenarios of the recorded clients, continued: mid-stream, faults, endpoint mapper, transactions, many clients."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from typing import Any

from peer.client import NDR, NDR64, BindRefused
from peer.idl import VT_NULL, QueueFormat, Variant
from peer.methods import EPM, QM2QM, QMCOMM, QMMGMT, REMOTEREAD, RPC_MGMT
from peer.mgmt import machine_object, tower, tower_port
from peer.ndr import NULL_HANDLE
from peer.pdu import Syntax
from peer.queues import PEEK_CURRENT, RECEIVE
from peer.reading import ACK, NACK, DependentReader, RemoteReader, open_arguments
from peer.scenarios_reading import EMPTY, LARGE, LEDGER, ORDERS, check, expect_fault
from peer.server import messages
from peer.world import World

UNIT = uuid.UUID("a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf").bytes


async def mid_stream(world: World) -> None:
    """The recorder starts after the binds and during a wait, and stops before everything is over."""
    async with world.client() as rpc, world.client("qm2qm", source=1) as support, world.client(source=1) as app:
        await rpc.bind(REMOTEREAD)
        await support.bind(QM2QM, (NDR, NDR64))
        await app.bind(QMCOMM, (NDR, NDR64))
        reader = await RemoteReader(rpc).open(ORDERS)
        queue = await DependentReader(app, support).open(LARGE)
        empty = await RemoteReader(rpc).open(EMPTY)
        before = empty.start_arguments(timeout=8000)
        _, pending = await rpc.send("R_StartReceive", **before)
        await asyncio.sleep(0.3)
        await world.record()
        # connections known by their ports and lengths only
        for ack in (ACK, NACK, ACK):
            check((await reader.receive(ack))["return"])
        answer = await queue.start2()
        check(await queue.end(answer["pphContext"], NACK))
        other = await RemoteReader(rpc).open(ORDERS, access=0x20)
        check((await other.start(PEEK_CURRENT))[1]["return"])
        # the answer of a request that was sent before the recorder started
        await world.put("private$\\empty", *messages(1, sizes=(5000,), start=900))
        check((await pending.future)["return"])
        check(await empty.end(before["dwRequestId"]))
        # a new connection is known from its beginning
        async with world.client(source=2) as fresh:
            await fresh.bind(REMOTEREAD, (NDR, NDR64), features=3)
            late = await RemoteReader(fresh).open(EMPTY, access=0x20)
            check((await late.start(PEEK_CURRENT))[1]["return"], 0xC00E001B)
            # the recorder stops while one receive waits and another holds its message
            check((await reader.start())[1]["return"])
            _, waiting = await fresh.send("R_StartReceive", **late.start_arguments(PEEK_CURRENT, timeout=1500))
            await asyncio.sleep(0.3)
            await world.stop_recording()
            check((await waiting.future)["return"], 0xC00E001B)


async def faults(world: World) -> None:
    """Refused binds and contexts, wrong opnums and stubs, cancels, orphans, dropped connections, groups."""
    async with world.client(multiplex=False) as rpc:
        with contextlib.suppress(BindRefused):  # bind_nak: a security provider the server does not have
            await rpc.bind_other(b"\x60\x28" + bytes(38))
        # contexts: one accepted, one interface unknown, NDR64 refused where there is only NDR
        await rpc.bind(REMOTEREAD)
        with contextlib.suppress(BindRefused):
            await rpc.bind(Syntax(uuid.UUID("6d2f1a3e-58c4-4b0d-9e77-4f1c7a90d2b6")))
        with contextlib.suppress(BindRefused):
            await rpc.bind(QMMGMT, (NDR64,))
        await rpc.bind(QMMGMT)
        await rpc.bind(QM2QM)
        await rpc.bind(RPC_MGMT)  # an interface that is none of MSMQ's, on the same connection
        for name in ("R_GetServerPort", "RemoteQmGetVersion", "rpc__mgmt_is_server_listening"):
            await rpc.call(name, **({"object_uuid": uuid.UUID(int=0x77)} if name == "RemoteQmGetVersion" else {}))
        for context, opnum, stub, status in (
            (0, 16, b"", 0x1C010002),  # RemoteRead ends at 15
            (0, 2, bytes(30), 0x000006F7),  # a stub cut short
            (1, 0, b"", 0x1C010003),  # contexts that were refused: a stranger's, and qmmgmt in NDR64
            (2, 0, b"", 0x1C010003),
            (0, 3, bytes(20), 0x1C00001A),  # the NULL handle
        ):
            pending = await rpc.send_raw(context, opnum, stub)
            await expect_fault(status, pending.future)
        reader = await RemoteReader(rpc).open(ORDERS)
        await expect_fault(0x1C00001A, rpc.call("RemoteQMCloseQueue", pphContext=reader.context))
        check(await reader.close())
        await expect_fault(0x1C00001A, rpc.call("R_CloseQueue", phContext=reader.context))
        machine = {"pObjectFormat": machine_object(), "cp": 1, "aProp": [4], "apVar": [Variant(VT_NULL)]}
        check((await rpc.call("R_QMMgmtGetInfo", **machine))["return"])
    async with world.client(order=">") as rpc:  # a big-endian client, several contexts in one bind
        await rpc.bind(REMOTEREAD, features=1)
        reader = await RemoteReader(rpc).open(ORDERS)
        check((await reader.receive(NACK))["return"])
        empty = await RemoteReader(rpc).open(EMPTY)
        # cancelled by the client's runtime, and orphaned
        call_id, pending = await rpc.send("R_StartReceive", **empty.start_arguments(timeout=5000))
        await asyncio.sleep(0.15)
        await rpc.cancel(call_id)
        await expect_fault(0x1C00000D, pending.future)
        call_id, _ = await rpc.send("R_StartReceive", **empty.start_arguments(timeout=5000))
        await asyncio.sleep(0.15)
        await rpc.orphan(call_id)
        check((await reader.start())[1]["return"])  # held, and the connection ends in order: rundown
    # two connections of one group: the message is held until the last is gone
    async with world.client(source=1) as one:
        await one.bind(REMOTEREAD)
        async with world.client(source=1, group=one.group) as two:
            await two.bind(REMOTEREAD)
            reader = await RemoteReader(one).open(ORDERS)
            request, _ = await reader.start()
            shared = RemoteReader(two, reader.context, 100)
            check((await shared.start(PEEK_CURRENT))[1]["return"])
            one.abort()
            await asyncio.sleep(0.2)
            check(await shared.end(request))  # acknowledged over the other connection
            check((await shared.start())[1]["return"])
    # a stranger cannot use another group's handle
    async with world.client(source=2) as stranger:
        await stranger.bind(REMOTEREAD)
        await expect_fault(0x1C00001A, stranger.call("R_PurgeQueue", phContext=reader.context))
        # a connection that ends while a receive waits: no answer
        waiting = await RemoteReader(stranger).open(EMPTY)
        await stranger.send("R_StartReceive", **waiting.start_arguments(timeout=5000))
        await asyncio.sleep(0.15)
        stranger.abort()
        await asyncio.sleep(0.2)


async def endpoint_mapper(world: World) -> None:
    """Ask port 135 for the interfaces, then call them there."""
    async with world.client("epm") as rpc:
        await rpc.bind(EPM)
        for interface in (REMOTEREAD, QM2QM, QMMGMT, QMCOMM, Syntax(uuid.UUID(int=5))):
            asked = {
                "obj": bytes(16) if interface is QM2QM else None,
                "map_tower": tower(interface.uuid, "0.0.0.0", 135),
                "entry_handle": NULL_HANDLE,
                "max_towers": 4,
            }
            answer = await rpc.call("ept_map", **asked)
            check(answer["return"], 0 if interface.uuid.int > 5 else 0x16C9A0D6)
            if answer["num_towers"]:
                world.notes[str(interface.uuid)] = tower_port(answer["towers"][1][0])
    async with world.client() as rpc:
        await rpc.bind(RPC_MGMT)
        await rpc.call("rpc__mgmt_is_server_listening")
        await rpc.bind(REMOTEREAD)
        reader = await RemoteReader(rpc).open(ORDERS)
        check((await reader.receive())["return"])
        check(await reader.close())


async def transactions(world: World) -> None:
    """Receives in a transaction: acknowledged, refused, rejected; moves between a queue and its subqueue."""
    async with world.client() as rpc:
        await rpc.bind(REMOTEREAD, (NDR, NDR64))
        reader = await RemoteReader(rpc).open(LEDGER)
        token = bytes(range(250)) * 160  # a request of several fragments
        args = {"pTransactionId": UNIT, "cbPropagationToken": len(token), "pbPropagationToken": token,
                "pQueueFormat": QueueFormat.direct(LEDGER)}  # fmt: skip

        async def start(unit: bytes, action: int = RECEIVE) -> tuple[int, dict[str, Any]]:
            call = reader.start_arguments(action)
            answer = await rpc.call("R_StartTransactionalReceive", **call, pTransactionId=unit)
            return int(call["dwRequestId"]), answer

        async def end(request: int, ack: int) -> int:
            call = {"phContext": reader.context, "dwAck": ack, "dwRequestId": request}
            return int((await rpc.call("R_EndTransactionalReceive", **call))["return"])

        check((await start(UNIT))[1]["return"], 0xC00E0051)  # not enlisted yet
        check((await rpc.call("R_QMEnlistRemoteTransaction", **args))["return"])
        check((await start(UNIT, PEEK_CURRENT))[1]["return"], 0xC00E0050)
        for ack, reject in ((ACK, False), (NACK, False), (ACK, True)):
            request, answer = await start(UNIT)
            check(answer["return"])
            lookup = answer["pSequenceId"]
            refuse = {"phContext": reader.context, "LookupId": lookup, "usClass": 0xC004}
            if reject:
                check((await rpc.call("R_SetUserAcknowledgementClass", **refuse))["return"], 0xC00E0050)
            check(await end(request, ack))
            if reject:
                check((await rpc.call("R_SetUserAcknowledgementClass", **refuse))["return"])
        missing = {"phContext": reader.context, "LookupId": 0x77, "usClass": 0xC004}
        check((await rpc.call("R_SetUserAcknowledgementClass", **missing))["return"], 0xC00E0088)
        request, answer = await start(bytes(16))  # no transaction: as R_StartReceive, ended by opnum 15
        check(answer["return"])
        check(await end(request, NACK))
        # moves
        orders = await RemoteReader(rpc).open(ORDERS)
        _, peeked = await orders.start(PEEK_CURRENT)
        target = await rpc.call("R_OpenQueueForMove", **open_arguments(f"{ORDERS};poison", 4))
        move = {"phContextFrom": orders.context, "ullContextTo": target["pMoveContext"],
                "LookupId": peeked["pSequenceId"], "pTransactionId": bytes(16)}  # fmt: skip
        check((await rpc.call("R_MoveMessage", **move))["return"])
        check((await rpc.call("R_MoveMessage", **move))["return"], 0xC00E0088)
        check((await rpc.call("R_MoveMessage", **{**move, "ullContextTo": 5}))["return"], 0xC00E0007)
        check((await rpc.call("R_MoveMessage", **{**move, "phContextFrom": reader.context}))["return"], 0xC000000D)
        poison = await RemoteReader(rpc).open(f"{ORDERS};poison")
        check((await poison.receive())["return"])
        check((await rpc.call("R_CloseQueue", phContext=target["pphContext"]))["return"])
        for item in (poison, orders, reader):
            check(await item.close())


async def many_clients(world: World) -> None:
    """Twelve clients at once with different syntaxes, fragment sizes, byte orders, protocols and time-outs."""
    rng = random.Random(3)  # the same plan every time; the timing is the network's
    await world.put("private$\\orders", *messages(60, sizes=(150, 2500, 12_000, 40_000), start=1000))

    async def remote(index: int) -> None:
        options: dict[str, Any] = {
            "fragment": rng.choice((1432, 2048, 4280, 5840)),
            "order": ">" if index % 5 == 4 else "<",
        }
        async with world.client(source=index % 3, **options) as rpc:
            await rpc.bind(REMOTEREAD, (NDR, NDR64) if index % 2 and index % 5 != 4 else (NDR,))
            reader = await RemoteReader(rpc).open(ORDERS)
            for _ in range(4):
                answer = await reader.receive(rng.choice((ACK, ACK, ACK, NACK)), timeout=rng.choice((0, 200)))
                if answer["return"] == 0 and rng.random() < 0.3:
                    await reader.start(PEEK_CURRENT)
            if index % 4:
                check(await reader.close())

    async def dependent(index: int) -> None:
        async with world.client(source=index % 3) as app, world.client("qm2qm", source=(index + 1) % 3) as support:
            await app.bind(QMCOMM, (NDR, NDR64))
            await support.bind(QM2QM, (NDR, NDR64) if index % 2 else (NDR,))
            queue = await DependentReader(app, support).open(ORDERS)
            for _ in range(3):
                answer = await queue.start2()
                if answer["return"] == 0:
                    check(await queue.end(answer["pphContext"], ACK))
            check(await queue.close())

    await asyncio.gather(*(remote(index) for index in range(8)), *(dependent(index) for index in range(4)))
