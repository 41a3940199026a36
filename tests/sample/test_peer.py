"""The test queue manager over real sockets: many clients, fragments, syntaxes, groups, cancels, rundown."""

import asyncio
import contextlib
import itertools

import pytest

from peer.client import NDR, NDR64, BindRefused, Client, RpcFault
from peer.methods import QM2QM, QMCOMM, QMMGMT, REMOTEREAD
from peer.queues import PEEK_CURRENT
from peer.reading import ACK, NACK, DependentReader, RemoteReader
from peer.security import CONNECT, INTEGRITY, PACKET, PRIVACY, Account
from peer.server import ACCOUNT, ServerThread, messages
from peer.world import Impacket

ORDERS = "OS:srv1\\private$\\orders"
LARGE = "OS:srv1\\private$\\large"
EMPTY = "OS:srv1\\private$\\empty"


@pytest.fixture
def server():
    with ServerThread() as running:
        yield running


def client(server, port="remoteread", **options):
    return Client("127.0.0.1", server.ports[port], **options)


def count(server, name="orders", state="available"):
    return server.do(lambda manager: sum(m.state == state for m in manager.queues[f"srv1\\private$\\{name}"].messages))


def outcomes(server):
    return server.do(lambda manager: manager.ledger.describe("", "")["attempts_by_outcome"])


@pytest.mark.parametrize("syntaxes", [(NDR,), (NDR64,), (NDR, NDR64)], ids=["ndr", "ndr64", "both"])
@pytest.mark.parametrize("fragment", [1432, 5840])
def test_a_large_message_comes_back_whole_in_every_syntax_and_fragment_size(server, syntaxes, fragment):
    async def play():
        async with client(server, fragment=fragment) as rpc:
            await rpc.bind(REMOTEREAD, syntaxes, features=3)
            reader = await RemoteReader(rpc).open(LARGE)
            return await reader.receive(ACK)

    packet = asyncio.run(play())["ppPacketSections"][0]["pSectionBuffer"]
    body = next(messages(1, sizes=(300_000,), start=100)).body
    assert body in packet
    truth = server.do(lambda manager: manager.ledger.describe("", ""))
    receive = truth["calls"][1]
    assert receive["syntax"] == ("NDR64" if NDR64 in syntaxes else "NDR")
    room = (fragment - 24) // 16 * 16
    assert receive["response_fragments"] == -(-receive["response"]["size"] // room)


def test_a_big_endian_client_reads_the_same(server):
    async def play(order):
        async with client(server, order=order) as rpc:
            await rpc.bind(REMOTEREAD)
            reader = await RemoteReader(rpc).open(ORDERS)
            return (await reader.receive(NACK))["ppPacketSections"]

    assert asyncio.run(play(">")) == asyncio.run(play("<"))


@pytest.mark.parametrize("level", [CONNECT, PACKET, INTEGRITY, PRIVACY])
def test_own_client_with_ntlm_at_every_level(server, level):
    async def play():
        async with client(server, account=ACCOUNT, level=level, verification=True) as rpc:
            await rpc.bind(REMOTEREAD, (NDR, NDR64))
            reader = await RemoteReader(rpc).open(LARGE)
            return await reader.receive(ACK)

    assert len(asyncio.run(play())["ppPacketSections"][0]["pSectionBuffer"]) > 300_000
    calls = server.do(lambda manager: manager.ledger.describe("", ""))["calls"]
    assert {call["outcome"] for call in calls} == {"encrypted" if level == PRIVACY else "ok"}
    assert all(("sealed_sha256" in call["response"]) == (level == PRIVACY) for call in calls)


@pytest.mark.parametrize("level", [None, CONNECT, INTEGRITY, PRIVACY])
def test_impacket_client_with_ntlm(server, level):
    rpc = Impacket("127.0.0.1", server.ports["remoteread"], ACCOUNT if level else None, level or 1).connect(REMOTEREAD)
    assert rpc.call("R_GetServerPort")["return"] == server.ports["remoteread"]
    rpc.close()


def test_a_wrong_password_is_a_fault(server):
    wrong = Account(ACCOUNT.user, "wrong", ACCOUNT.domain)

    async def play():
        async with client(server, account=wrong, level=PRIVACY) as rpc:
            await rpc.bind(REMOTEREAD)
            await rpc.call("R_GetServerPort")

    with pytest.raises((RpcFault, ConnectionError)):
        asyncio.run(play())


def test_forty_clients_share_the_messages_and_none_is_read_twice(server):
    server.do(lambda manager: [manager.queues["srv1\\private$\\orders"].put(m) for m in messages(68, sizes=(700,))])

    async def one(index):
        async with client(server) as rpc:
            await rpc.bind(REMOTEREAD, (NDR, NDR64) if index % 2 else (NDR,))
            reader = await RemoteReader(rpc).open(ORDERS)
            got = [await reader.receive() for _ in range(2)]
            await reader.close()
            return [answer["pSequenceId"] for answer in got if answer["return"] == 0]

    async def play():
        return await asyncio.gather(*(one(index) for index in range(40)))

    seen = [ident for idents in asyncio.run(play()) for ident in idents]
    assert len(seen) == len(set(seen)) == 80
    assert count(server) == 0
    assert outcomes(server) == {"acked": 80}


def test_answers_come_out_of_order_and_only_with_multiplexing(server):
    async def play(multiplex):
        async with client(server, multiplex=multiplex) as rpc:
            await rpc.bind(REMOTEREAD)
            reader = await RemoteReader(rpc).open(EMPTY, access=0x20)
            done = []
            sent = [
                await rpc.send("R_StartReceive", **reader.start_arguments(PEEK_CURRENT, timeout=t)) for t in (300, 50)
            ]
            for name, (_, pending) in zip("ab", sent, strict=True):
                pending.future.add_done_callback(lambda _, name=name: done.append(name))
            await asyncio.gather(*(pending.future for _, pending in sent))
            await asyncio.sleep(0)
            return "".join(done)

    assert asyncio.run(play(multiplex=True)) == "ba"
    assert asyncio.run(play(multiplex=False)) == "ab"


def test_fragments_of_several_answers_interleave(server):
    seen = []

    class Watching(Client):
        def _take(self, raw, pdu):
            seen.append(pdu.call_id)
            super()._take(raw, pdu)

    async def play():
        async with Watching("127.0.0.1", server.ports["remoteread"]) as rpc:
            await rpc.bind(REMOTEREAD)
            reader = await RemoteReader(rpc).open(EMPTY)
            sent = [await rpc.send("R_StartReceive", **reader.start_arguments(timeout=5000)) for _ in range(2)]
            await asyncio.sleep(0.1)
            server.do(
                lambda manager: [manager.queues["srv1\\private$\\empty"].put(m) for m in messages(2, sizes=(99_000,))]
            )
            await asyncio.gather(*(pending.future for _, pending in sent))

    asyncio.run(play())
    changes = sum(a != b for a, b in itertools.pairwise(seen))
    assert changes > 10


def test_bind_results(server):
    async def play():
        async with client(server) as rpc:
            await rpc.bind(REMOTEREAD, (NDR, NDR64), features=3)
            with pytest.raises(BindRefused):
                await rpc.bind(QMMGMT, (NDR64,))
            await rpc.bind(QMMGMT, (NDR,))
            return [(item.result, item.reason) for item in rpc.results]

    assert asyncio.run(play()) == [(2, 2), (0, 0), (3, 3), (2, 2), (0, 0)]


def test_cancel_faults_and_orphan_gets_no_answer(server):
    async def play():
        async with client(server) as rpc:
            await rpc.bind(REMOTEREAD)
            reader = await RemoteReader(rpc).open(EMPTY)
            call_id, pending = await rpc.send("R_StartReceive", **reader.start_arguments(timeout=5000))
            await rpc.cancel(call_id)
            with pytest.raises(RpcFault, match="1C00000D"):
                await pending.future
            call_id, orphan = await rpc.send("R_StartReceive", **reader.start_arguments(timeout=5000))
            await rpc.orphan(call_id)
            assert await reader.close() == 0
            assert not orphan.future.done()

    asyncio.run(play())
    assert outcomes(server) == {"cancelled": 2}
    calls = server.do(lambda manager: manager.ledger.describe("", ""))["calls"]
    assert [call["outcome"] for call in calls] == ["ok", "fault", "no_response", "ok"]


def test_a_group_keeps_its_handles_until_its_last_connection_ends(server):
    async def play():
        async with client(server) as one:
            await one.bind(REMOTEREAD)
            async with client(server, group=one.group) as two, client(server) as stranger:
                await two.bind(REMOTEREAD)
                await stranger.bind(REMOTEREAD)
                reader = await RemoteReader(one).open(ORDERS)
                request, _ = await reader.start()
                await reader.start()
                one.abort()
                await asyncio.sleep(0.1)
                assert count(server, state="locked") == 2
                with pytest.raises(RpcFault, match="1C00001A"):
                    await RemoteReader(stranger, reader.context).end(request)
                assert await RemoteReader(two, reader.context).end(request) == 0
        await asyncio.sleep(0.1)

    asyncio.run(play())
    assert count(server, state="locked") == 0
    assert outcomes(server) == {"acked": 1, "rundown": 1}
    assert server.do(lambda manager: manager.opened) == {}


def test_dependent_client_over_two_interfaces(server):
    async def play():
        async with client(server) as app, client(server, "qm2qm") as support:
            await app.bind(QMCOMM, (NDR, NDR64))
            await support.bind(QM2QM, (NDR,))
            queue = await DependentReader(app, support).open(ORDERS)
            for ack in (ACK, NACK):
                answer = await queue.start2()
                assert await queue.end(answer["pphContext"], ack) == 0
            waiting = asyncio.create_task(queue.start2(PEEK_CURRENT))
            assert (await waiting)["pphContext"] == bytes(20)
            await queue.start2()  # never ended: the handle outlives CloseQueue, the association does not
            assert await queue.close() == 0
            assert count(server, state="locked") == 1
        await asyncio.sleep(0.1)

    asyncio.run(play())
    assert outcomes(server) == {"acked": 1, "nacked": 1, "peeked": 1, "rundown": 1}
    assert count(server) == 11


def test_garbage_ends_the_connection_and_nothing_else(server):
    async def play():
        _, writer = await asyncio.open_connection("127.0.0.1", server.ports["remoteread"])
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 4)
        await writer.drain()
        async with client(server) as rpc:
            await rpc.bind(REMOTEREAD)
            answer = await rpc.call("R_GetServerPort")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return answer["return"]

    assert asyncio.run(play()) == server.ports["remoteread"]
