"""What happens in the recordings of `data/transfers`: one script per capture.

shop sells, hq takes orders, relay passes on, bank keeps acknowledgements and reports. Time passes only where a script
says so, by the values of the specification: session acks after 10 s or 500 ms, order acks after 500 ms, resends after
30 s, new sessions 5 s after the last one broke.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable

from framework_messages import nservicebus
from peer.transfers import layouts as p
from peer.transfers.clock import SECOND
from peer.transfers.exchange import Exchange
from peer.transfers.queue_manager import MOST_HOPS, LocalQueue, QueueManager

ALL_ACKS = p.POSITIVE_ARRIVAL | p.POSITIVE_RECEIVE | p.NEGATIVE_ARRIVAL | p.NEGATIVE_RECEIVE
STRANGE_GUID = uuid.UUID("0badc0de-1111-4222-8333-444455556666")
FAILURE = {
    "NServiceBus.FailedQ": "billing@bank",
    "NServiceBus.ProcessingEndpoint": "Billing",
    "NServiceBus.Retries": "3",
    "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
    "NServiceBus.ExceptionInfo.Message": "No answer about <order 4711>",
}
"""What NServiceBus adds to the headers of a message that it moves to an error queue."""
SID = bytes.fromhex("010500000000000515000000ad4a9ebd36d9fa3d63a656dae8030000")


def text(size: int, number: int = 0) -> bytes:
    """A body that compresses well."""
    line = f"<order number='{number}'><item>Glühwein</item><quantity>{number % 7}</quantity></order>\r\n".encode()
    return (line * (size // len(line) + 1))[:size]


async def handshakes(x: Exchange, start: Callable[[], None]) -> None:
    """Handshakes: by identifier, by name, with pings, refused, unanswered, not established; a stranger."""
    shop, hq = await x.manager("shop", 1), await x.manager("hq", 2)
    orders = hq.add_queue("orders")
    start()
    shop.settings.pings = True
    shop.send(orders.name.private, text(200), label="by identifier")
    await x.pass_time(620)  # acknowledged after 10 s, closed idle after 600
    shop.settings.pings = False
    shop.send(orders.name.direct, text(300), label="by name")
    await x.pass_time(12)
    await x.break_session(hq, shop, reset=False)
    x.wrong_guids[hq.address] = STRANGE_GUID
    shop.neighbours.clear()
    shop.send(orders.name.public, text(100), label="refused once: another identifier was expected")
    await x.clock.settle()
    x.wrong_guids.clear()
    shop.neighbours[hq.address, False].guid = hq.guid
    await x.pass_time(16)  # tries again after 5 s
    await x.break_session(shop, hq, reset=False)
    hq.settings.refuses = True
    shop.send(orders.name.private, text(100), label="refused: too many sessions")
    await x.pass_time(1)
    shop.settings.pings = True  # the next attempt asks first, and is refused before it connects
    await x.pass_time(7)
    hq.settings.refuses, hq.settings.answers, shop.settings.pings = False, False, False
    await x.pass_time(65)  # connects, and waits 60 s for an answer
    hq.settings.answers = True
    await x.pass_time(12)
    await x.stranger(shop.address, hq.address, b"GET /msmq/private$/orders HTTP/1.1\r\nHost: hq\r\n\r\n")
    shop.send(p.FormatName(direct=f"TCP:{x.addresses}4\\private$\\orders"), text(50), label="nobody listens")
    await x.pass_time(1)


async def session_acks(x: Exchange, start: Callable[[], None]) -> None:
    """Session acks by time and by count, alone and piggybacked; a slow disk; a full window; none at all."""
    shop, hq, bank = await x.manager("shop", 1), await x.manager("hq", 2), await x.manager("bank", 3)
    orders, replies, ledger = hq.add_queue("orders"), shop.add_queue("replies"), bank.add_queue("ledger")
    start()
    for number in range(3):
        shop.send(orders.name.private, text(400, number), label=f"express {number}")
    await x.pass_time(11)
    for number in range(2):
        shop.send(orders.name.private, text(300, number), label=f"recoverable {number}", recoverable=True)
    shop.send(orders.name.private, text(100), label="express with them")
    await x.pass_time(1)
    for number in range(34):  # half of the window of 64 is acknowledged at once
        shop.send(orders.name.private, text(60, number), priority=number % 8)
    await x.pass_time(2)
    hq.send(replies.name.private, text(700), label="its session header acknowledges the two that are left")
    await x.pass_time(1)
    shop.send(orders.name.private, text(80), label="and this one acknowledges the reply", recoverable=True)
    hq.send(replies.name.private, text(90), label="recoverable reply", recoverable=True)
    await x.pass_time(5)
    hq.settings.disk_s = 2  # received at once, on disk later: numbers 4 to 6
    for number in range(3):
        shop.send(orders.name.private, text(150, number), label=f"slow disk {number}", recoverable=True)
    await x.pass_time(1)
    hq.settings.disk_s = 0
    shop.send(orders.name.private, text(150), label="on disk before them", recoverable=True)
    await x.pass_time(5)
    x.session(hq, shop).window = 1  # hq is short of memory: a window of 1 (note 15 of [MS-MQMQ])
    shop.send(orders.name.private, text(70), label="its acknowledgement says so")
    await x.pass_time(11)
    for number in range(3):
        shop.send(orders.name.private, text(70), label=f"one at a time {number}", recoverable=number > 0)
    x.session(hq, shop).window = 64
    await x.pass_time(15)
    bank.settings.window, bank.settings.session_acks = 4, False
    for number in range(7):  # by name
        shop.send(ledger.name.direct, text(120, number), label=f"window of 4, {number}")
    await x.pass_time(8)
    bank.settings.session_acks = True
    x.session(bank, shop).acknowledge()
    await x.pass_time(30)
    bank.settings.session_acks = False
    shop.send(ledger.name.direct, text(120), label="never acknowledged in this session")
    await x.pass_time(81)  # twice the time-out of 20 s in a session by name, as long again if something was heard
    bank.settings.session_acks = True
    await x.pass_time(15)


async def transactions(x: Exchange, start: Callable[[], None]) -> None:
    """Transactional messages: order acks, final acks, sequences that empty, a gap that is bridged, refusals."""
    shop, hq = await x.manager("shop", 1), await x.manager("hq", 2)
    ledger, archive = hq.add_queue("ledger", transactional=True), hq.add_queue("archive", transactional=True)
    orders = hq.add_queue("orders")
    start()
    by_id, by_name = ledger.name.private, ledger.name.direct
    shop.send_transaction([(by_id, text(500, n)) for n in range(3)], final_ack=True, label="final ack wanted")
    await x.pass_time(3)
    hq.take(ledger, count=2)
    hq.take(ledger, p.NACK_REJECTED)
    await x.pass_time(2)
    shop.send_transaction([(by_id, text(60)), (archive.name.public, text(70))], label="two queues")
    await x.pass_time(0.3)
    shop.send_transaction([(by_id, text(80))], label="before the order ack: the timer starts again")
    await x.pass_time(3)
    hq.take(ledger)
    hq.settings.order_acks_recoverable = True
    shop.send_transaction([(by_name, text(200, n)) for n in range(2)], journaling=p.DEAD_LETTER | p.JOURNAL)
    await x.pass_time(3)
    shop.send_transaction([(orders.name.direct, text(100))], label="not a transactional queue")
    await x.pass_time(3)
    hq.take(ledger, p.NACK_RECEIVE_TIMEOUT)
    await x.pass_time(12)
    session = x.session(hq, shop)
    session.listen_no_more()
    shop.send_transaction([(by_name, text(90, 1))], label="first")
    shop.send_transaction([(by_name, text(90, 2))], label="expires before it can be sent again", time_to_reach=3)
    shop.send_transaction([(by_name, text(90, 3))], label="third")
    await x.pass_time(2)
    await x.break_session(shop, hq)
    await x.pass_time(20)


async def administration_acks(x: Exchange, start: Callable[[], None]) -> None:
    """Administration acknowledgements of every class, to queues of all kinds."""
    shop, hq, bank = await x.manager("shop", 1), await x.manager("hq", 2), await x.manager("bank", 3)
    relay = await x.manager("relay", 4)
    hq.settings.insecure_nacks = True
    orders, ledger = hq.add_queue("orders"), hq.add_queue("ledger", transactional=True)
    full, closed = hq.add_queue("full", quota=0), hq.add_queue("closed", closed_to_strangers=True)
    mine, far = shop.add_queue("acks"), bank.add_queue("acks")
    own = hq.add_queue("acks")
    start()
    wants: dict[str, object] = {"acknowledge": ALL_ACKS, "admin": mine.name.private}
    to = orders.name.private
    shop.send(to, text(100), label="arrives and is received", **wants)
    await x.pass_time(2)
    hq.take(orders)
    elsewhere = {"acknowledge": ALL_ACKS, "admin": far.name.private}
    shop.send(to, text(100), label="acknowledged to a third machine", recoverable=True, **elsewhere)
    await x.pass_time(2)
    hq.take(orders)
    shop.send(to, text(100), label="to a direct name", acknowledge=ALL_ACKS, admin=far.name.tcp)
    shop.send(to, text(100), label="to a public queue", acknowledge=ALL_ACKS, admin=mine.name.public)
    shop.send(to, text(100), label="to a queue of its own", acknowledge=ALL_ACKS, admin=own.name.private)
    shop.send(to, text(100), label="arrival alone", acknowledge=p.POSITIVE_ARRIVAL, admin=mine.name.private)
    shop.send(to, text(100), label="none asked, response queue", response=mine.name.private)
    same = {"admin": far.name.private, "response": far.name.private}
    shop.send(to, text(100), label="one queue for both", acknowledge=p.NEGATIVE_RECEIVE, **same)
    await x.pass_time(2)
    for why in (p.NACK_QUEUE_DELETED, p.NACK_QUEUE_PURGED, p.NACK_RECEIVE_TIMEOUT, p.NACK_REJECTED):
        hq.take(orders)
        await x.pass_time(1)
        shop.send(to, text(64), label=f"leaves its queue: {why:04X}", response=mine.name.private, **wants)
        await x.pass_time(1)
        hq.take(orders, why)
    await x.pass_time(2)
    shop.send(p.FormatName(guid=hq.guid, number=999), text(64), label="8000", **wants)
    shop.send(full.name.private, text(64), label="8003", recoverable=True, **wants)
    shop.send(closed.name.private, text(64), label="8004", security=p.Security(SID), **wants)
    signed = p.Security(SID, b"", bytes(range(128)), b"not a certificate")
    shop.send(to, text(64), label="8006", security=signed, **wants)
    key = bytes.fromhex("010200001066000000a40000") + bytes(256)
    shop.send(to, bytes(96), label="8007", security=p.Security(SID, key), privacy=5, **wants)
    shop.send(
        to, bytes(96), label="800B", security=p.Security(SID, key, provider="Unknown Provider"), privacy=5, **wants
    )
    shop.send(ledger.name.private, text(64), label="800A", **wants)
    shop.send_transaction([(to, text(64))], label="8009", **wants)
    await x.pass_time(3)
    shop.routes[hq.guid] = relay.address
    shop.send(to, text(64), label="8005", hops=MOST_HOPS, **wants)
    await x.pass_time(12)
    shop.routes.clear()
    session = x.session(hq, shop)
    session.listen_no_more()
    sent = [
        shop.send(to, text(64, why), label=f"given up by its sender: {why:04X}", recoverable=True, time_to_reach=reach,
                  **elsewhere)
        for why, reach in (
            (p.NACK_DELETED, p.NEVER), (p.NACK_REACH_TIMEOUT, 4), (p.NACK_COULD_NOT_ENCRYPT, p.NEVER),
            (p.NACK_SOURCE_CHANGED, p.NEVER), (p.NACK_RECEIVE_TIMEOUT_AT_SENDER, p.NEVER),
        )
    ]  # fmt: skip
    await x.pass_time(1)
    await x.break_session(shop, hq)
    gone = (p.NACK_DELETED, None, p.NACK_COULD_NOT_ENCRYPT, p.NACK_SOURCE_CHANGED, p.NACK_RECEIVE_TIMEOUT_AT_SENDER)
    for message, why in zip(sent, gone, strict=True):
        if why is not None:
            shop.delete_waiting(message, why)
    await x.pass_time(20)


async def resends(x: Exchange, start: Callable[[], None]) -> None:
    """Connections that break before the acknowledgement: all is sent again, or lost with its queue manager."""
    shop, hq = await x.manager("shop", 1), await x.manager("hq", 2)
    orders, ledger = hq.add_queue("orders"), hq.add_queue("ledger", transactional=True)
    start()

    def three(label: str) -> None:
        shop.send(orders.name.private, text(150), label=f"express, {label}")
        shop.send(orders.name.private, text(160), label=f"recoverable, {label}", recoverable=True)
        shop.send_transaction([(ledger.name.private, text(170))], label=f"transactional, {label}")

    three("received twice")
    await x.pass_time(0.1)  # received, not acknowledged
    await x.break_session(shop, hq)
    await x.pass_time(16)
    x.session(hq, shop).listen_no_more()
    three("received once")
    shop.send(orders.name.private, text(140), label="not sent again: expired", time_to_reach=3)
    await x.pass_time(0.1)  # on the wire, and never read
    await x.break_session(hq, shop)
    await x.pass_time(16)
    hq.settings.session_acks = False
    three("its sender restarts")
    await x.pass_time(0.6)  # the order ack comes alone
    shop.restart()
    hq.settings.session_acks = True
    await x.pass_time(16)
    three("closed in good order")
    await x.pass_time(0.1)
    await x.break_session(hq, shop, reset=False)
    await x.pass_time(16)


async def two_hops(x: Exchange, start: Callable[[], None]) -> None:
    """Over a router: express, recoverable, transactional; order and final acks on their way back; reports."""
    shop, hq = await x.manager("shop", 1), await x.manager("hq", 2)
    bank, relay = await x.manager("bank", 3), await x.manager("relay", 4)
    relay.settings.cleanup_s = 120
    shop.routes[hq.guid] = hq.routes[shop.guid] = relay.address
    orders, ledger = hq.add_queue("orders"), hq.add_queue("ledger", transactional=True)
    acks, reports = shop.add_queue("acks"), bank.add_queue("reports")
    start()
    traced: dict[str, object] = {"traced": True, "report_queue": reports.name.public.guid}
    shop.send(orders.name.private, text(200), label="express", **traced)
    await x.pass_time(2)
    shop.send(orders.name.private, text(200), label="recoverable", recoverable=True, acknowledge=ALL_ACKS,
              admin=acks.name.private, **traced)  # fmt: skip
    await x.pass_time(2)
    shop.send_transaction([(ledger.name.private, text(300, n)) for n in range(3)], final_ack=True)
    await x.pass_time(3)
    hq.take(orders)
    hq.take(ledger, count=2)
    await x.pass_time(3)
    shop.send_transaction([(orders.name.private, text(80))], label="refused behind the router", journaling=1)
    await x.pass_time(3)
    await x.break_session(relay, hq)
    relay.settings.paused = True
    shop.send(orders.name.private, text(90), label="waits at the router", **traced)
    shop.send(orders.name.private, text(95), label="expires at the router", time_to_reach=4, acknowledge=ALL_ACKS,
              admin=acks.name.private)  # fmt: skip
    await x.pass_time(6)
    relay.resume()
    await x.pass_time(20)


async def several_queues(x: Exchange, start: Callable[[], None]) -> None:
    """One message to several queues: copies with one identifier, their acknowledgements told apart."""
    shop, hq, bank = await x.manager("shop", 1), await x.manager("hq", 2), await x.manager("bank", 3)
    orders, archive = hq.add_queue("orders"), hq.add_queue("archive")
    audit, ledger = bank.add_queue("audit"), bank.add_queue("ledger", transactional=True)
    books, acks = hq.add_queue("books", transactional=True), shop.add_queue("acks")
    start()
    wants: dict[str, object] = {"acknowledge": ALL_ACKS, "admin": acks.name.private}
    all_names = (orders.name.private, archive.name.public, audit.name.direct)
    shop.send_to_several(all_names, text(500), label="to three queues", **wants)
    await x.pass_time(3)
    hq.take(orders)
    bank.take(audit, p.NACK_QUEUE_PURGED)
    await x.pass_time(12)
    header = p.Transaction(0, 0, 0, 77, final_ack=True)
    pair = (books.name.private, ledger.name.private)
    shop.send_to_several(pair, text(250), recoverable=True, priority=0, transaction=header, label="in one transaction")
    await x.pass_time(3)
    hq.take(books)
    bank.take(ledger, p.NACK_REJECTED)
    await x.pass_time(12)


async def stall(x: Exchange, start: Callable[[], None]) -> None:
    """Stalls: order acks that do not come, until they do; a receiver that has to refuse what comes."""
    shop, hq = await x.manager("shop", 1), await x.manager("hq", 2)
    ledger, books = hq.add_queue("ledger", transactional=True), hq.add_queue("books", transactional=True)
    start()
    to = ledger.name.private
    shop.send_transaction([(to, text(200, 1))], label="acknowledged")
    shop.send_transaction([(to, text(200, 2))], label="acknowledged too")
    await x.pass_time(0.2)
    shop.send_transaction([(to, text(200, 3))], label="with them")
    await x.pass_time(5)
    hq.settings.order_acks = False
    for number in range(3):
        shop.send_transaction([(to, text(300, number))], label=f"stalls {number}")
    await x.pass_time(40)  # sent again after 30 s
    shop.send_transaction([(to, text(300))], label="joins the stall")
    await x.pass_time(60)  # after 30 s twice more
    hq.settings.order_acks = True
    await x.pass_time(300)  # after 5 min: acknowledged
    shop.settings.bridges_from_acknowledged = True
    for number in range(3):
        shop.send_transaction([(books.name.private, text(100, number))], label=f"books {number}")
    await x.pass_time(0.1)
    (state,) = [each for (_, queue), each in hq.incoming.items() if queue == str(books.name.private)]
    state.number = 2  # hq forgets the third, and acknowledges two
    await x.pass_time(1)
    state.number = 1  # hq is restored from a backup: it lacks the second, and refuses the third for ever
    await x.pass_time(100)


async def large_messages(x: Exchange, start: Callable[[], None]) -> None:
    """Large messages over many segments, in both directions at once."""
    shop, hq = await x.manager("shop", 1), await x.manager("hq", 2)
    orders, replies = hq.add_queue("orders").name.private, shop.add_queue("replies").name.private
    start()
    shop.send(orders, text(40_000), label="express")
    await x.pass_time(1)
    shop.send(orders, text(30_000), label="both ways at once")
    hq.send(replies, text(25_000), label="the other way, with an extension", extension=bytes(31))
    await x.pass_time(2)
    shop.send(orders, text(150_000), label="recoverable", recoverable=True)
    shop.send(orders, b"", label="empty")
    shop.send(orders, text(1), label="one octet", recoverable=True)
    shop.send(orders, b"", recoverable=True, application=7)
    hq.send(replies, text(60_000), label="x" * 124, recoverable=True)
    await x.pass_time(15)


async def mid_stream(x: Exchange, start: Callable[[], None]) -> None:
    """The recorder starts when sessions are open and stops before they end."""
    shop, hq, bank = await x.manager("shop", 1), await x.manager("hq", 2), await x.manager("bank", 3)
    orders, ledger = hq.add_queue("orders"), hq.add_queue("ledger", transactional=True)
    replies, audit = shop.add_queue("replies"), bank.add_queue("audit")
    for number in range(6):
        shop.send(orders.name.private, text(90, number), recoverable=number % 2 == 0)
        shop.send(audit.name.direct, text(90, number))
    shop.send_transaction([(ledger.name.private, text(80, number)) for number in range(2)])
    await x.pass_time(12)
    start()
    shop.send(orders.name.private, text(100), label="no number yet", recoverable=True)
    shop.send(audit.name.direct, text(100), label="one way, express: no number ever")
    await x.pass_time(2)
    hq.send(replies.name.private, text(100), label="whose session header numbers all")
    shop.send_transaction([(ledger.name.private, text(80))], label="third of its sequence, or the first of the next")
    await x.pass_time(12)
    shop.send(orders.name.private, text(100), label="in flight when the recorder stops")
    shop.send(orders.name.private, text(100), label="expires soon, in flight", time_to_reach=86_400)
    await x.clock.settle()


def application_id(name: str) -> str:
    """Return the id of a message, or of a conversation, that an application of `conversation` names so."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def application_headers(
    kind: str, sender: QueueManager, endpoint: str, intent: str, caused_by: str | None
) -> dict[str, str]:
    """Return the headers that an endpoint of NServiceBus writes; ``kind`` and ``caused_by`` are types of messages."""
    sent_at = dt.datetime.fromtimestamp(sender.clock.now() / SECOND, dt.UTC)
    headers = {
        "NServiceBus.MessageId": application_id(kind),
        "NServiceBus.MessageIntent": intent,
        "NServiceBus.ConversationId": application_id("conversation"),
        "NServiceBus.CorrelationId": application_id(caused_by or kind),
        "NServiceBus.OriginatingMachine": sender.name.upper(),
        "NServiceBus.OriginatingEndpoint": endpoint,
        "NServiceBus.ReplyToAddress": f"{endpoint.lower()}@{sender.name}",
        "NServiceBus.ContentType": "text/xml",
        "NServiceBus.EnclosedMessageTypes": f"{kind}, Contracts, Version=1.0.0.0, Culture=neutral, PublicKeyToken=null",
        "NServiceBus.Version": "7.8.2",
        "NServiceBus.TimeSent": f"{sent_at:%Y-%m-%d %H:%M:%S:%f} Z",
    }
    return headers | ({"NServiceBus.RelatedTo": application_id(caused_by)} if caused_by else {})


async def conversation(x: Exchange, start: Callable[[], None]) -> None:
    """A conversation of NServiceBus endpoints: five messages over three queues, of which one arrives in `error`."""
    shop, hq, bank = await x.manager("shop", 1), await x.manager("hq", 2), await x.manager("bank", 3)
    sales = hq.add_queue("sales", transactional=True)
    billing = bank.add_queue("billing", transactional=True)
    error = shop.add_queue("error", transactional=True)
    start()

    async def send(sender: QueueManager, queue: LocalQueue, headers: dict[str, str]) -> None:
        name = headers["NServiceBus.EnclosedMessageTypes"].split(",")[0].rpartition(".")[2]
        body = f'<?xml version="1.0"?><{name} xmlns="http://tempuri.net/Contracts"><OrderId>4711</OrderId></{name}>'
        sender.send_transaction(
            [(queue.name.direct, body.encode())], body_type=0, journaling=p.DEAD_LETTER, extension=nservicebus(headers)
        )
        await x.pass_time(2)

    await send(shop, sales, application_headers("Sales.PlaceOrder", shop, "Website", "Send", None))
    hq.take(sales)
    await send(hq, billing, application_headers("Sales.OrderPlaced", hq, "Sales", "Publish", "Sales.PlaceOrder"))
    bank.take(billing)
    await send(bank, sales, application_headers("Billing.OrderBilled", bank, "Billing", "Publish", "Sales.OrderPlaced"))
    hq.take(sales)
    headers = application_headers("Billing.SendInvoice", hq, "Sales", "Send", "Billing.OrderBilled")
    await send(hq, billing, headers)
    await x.pass_time(60)  # tried again after 10 s, 20 s and 30 s: this makes no traffic
    bank.take(billing)
    await send(bank, error, headers | FAILURE)
    await x.pass_time(10)


SCRIPTS = (
    handshakes, session_acks, transactions, administration_acks, resends, two_hops, several_queues, stall,
    large_messages, mid_stream, conversation,
)  # fmt: skip
