"""Views and alerts of data/transfers, whose queue managers wrote down what they did: that is found, and no more."""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

import pytest

from jobs import run_all
from peer.transfers.scripts import FAILURE
from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.update import current_alerts
from pipeline.lake.lake import Lake
from pipeline.reports.views.catalog import LakeViews
from reports.questions.both_engines import answers_of, quick_session
from transfers_peer.reading import CAPTURES, account_lines, of
from udfs.codes import NEGATIVE_CLASS_TEXTS, message_class_name
from udfs.queues.normal_form import normalize_queue_name

pytestmark = pytest.mark.spark

LIMITS = Thresholds()
NEGATIVE = 0x8000
BILLING_FAILS = f"Billing: {FAILURE['NServiceBus.ExceptionInfo.ExceptionType']}"
NUMBERS = ("first_waiting_number", "last_number", "waiting")
CLOCKS_MS = 5.0  # the queue managers' clock and the capture's


class Account:
    """What the queue managers of one recording say."""

    def __init__(self, path):
        lines = account_lines(path.name.split(".")[0])
        self.sessions = of(lines, "session")
        self.messages = of(lines, "message")
        self.sequences = of(lines, "sequence")
        self.packets = {line["packet"]: line for line in of(lines, "packet") if line["recorded"]}

    def has_numbers(self, packet):
        """Return whether its side shows any: one-way express traffic from its middle on does not (3.1.6.4)."""
        side = packet["session"], packet["sent_by"]
        return any(
            each["kind"] == "establish_connection" or each.get("session_header")
            for each in self.packets.values() if (each["session"], each["sent_by"]) == side
        )  # fmt: skip

    def sendings(self, message):
        """Return the packets of a message that were captured, in order."""
        return [self.packets[each] for each in message["sendings"] if each in self.packets]


ACCOUNTS = [Account(path) for path in CAPTURES]
MESSAGES = [(account, message) for account in ACCOUNTS for message in account.messages if account.sendings(message)]


def hop_of(row):
    return row["sender_address"], row["receiver_address"]


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("recordings") / "lake"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_all, "console_summary", lambda _lake: "")
        patch.setattr(run_all, "queue_lines", lambda _lake, _as_of: [])
        assert run_all.main(["--lake", str(root), "--captures", *map(str, CAPTURES)]) == 0
    return Lake(quick_session(spark), str(root))


@pytest.fixture(scope="module")
def answer(lake):
    """Reads the rows of a view."""
    answer = answers_of(LakeViews(lake))
    return lambda name: answer(name).to_pylist()


def test_messages_and_bytes_sent_again(answer):
    expected = defaultdict(Counter)
    for account, message in MESSAGES:
        packets = account.sendings(message)
        day = datetime.fromtimestamp(packets[0]["sent_at"] // 10**9, UTC).replace(hour=0, minute=0, second=0)
        size = sum(packet["length_bytes"] for packet in packets)
        expected[day, *hop_of(message), message["message_kind"]] += Counter(
            messages=1, sendings=len(packets), resends=len(packets) - 1, bytes=size,
            resent_bytes=size - packets[0]["length_bytes"], resent_messages=len(packets) > 1,
        )  # fmt: skip
    found = {(row["day"].astimezone(UTC), *hop_of(row), row["message_kind"]): row for row in answer("resent_messages")}
    assert found.keys() == expected.keys()
    for place, counts in expected.items():
        assert {name: found[place][name] for name in counts} == dict(counts)
    assert sum(counts["resends"] for counts in expected.values()) > 30


def test_latency_of_pairs_and_sizes(answer):
    times = defaultdict(list)
    for account, message in MESSAGES:
        packets = account.sendings(message)
        size = packets[0]["length_bytes"]
        band = sum(size >= limit for limit in (4 << 10, 64 << 10, 1 << 20))
        acked = account.packets.get(message["session_acked_by"]) if account.has_numbers(packets[0]) else None
        times[*hop_of(message), band].append(acked and (acked["sent_at"] - packets[0]["sent_at"]) / 1e6)
    bands = ("below 4 KiB", "below 64 KiB", "below 1 MiB", "1 MiB and above")
    found = {(*hop_of(row), bands.index(row["size"])): row for row in answer("transfer_latency")}
    assert found.keys() == times.keys()
    assert {place[2] for place in found} == {0, 1, 2}
    for place, every in times.items():
        row, acked = found[place], sorted(each for each in every if each is not None)
        assert (row["messages"], row["session_ack_known"]) == (len(every), len(acked))
        assert row["transmit_known"] == len(every)
        if acked:
            for share in (50, 95, 99):
                rank = -(-len(acked) * share // 100) - 1
                assert row[f"session_ack_p{share}_ms"] == pytest.approx(acked[rank], abs=2 * CLOCKS_MS)


def test_messages_delivered_twice(answer):
    expected = {
        (*hop_of(message), message["message_id"]): message["acknowledged_sendings"]
        for _, message in MESSAGES
        if message["acknowledged_sendings"] > 1
    }
    found = {(*hop_of(row), row["message_id"]): row["acknowledged_sendings"] for row in answer("delivered_twice")}
    assert found == expected
    assert expected


def test_numbers_never_acknowledged(answer):
    expected = {
        (line["transaction_sequence_id"], *hop_of(line)): tuple(line[name] for name in NUMBERS)
        for account in ACCOUNTS for line in account.sequences if line["waiting"]
    }  # fmt: skip
    found = {
        (int(row["sequence_id"]), *hop_of(row)): (row["from_number"], row["to_number"], row["messages"])
        for row in answer("never_acknowledged")
    }
    assert found == expected
    assert len(expected) == 1
    assert not any(line["missing"] for account in ACCOUNTS for line in account.sequences)
    assert answer("gaps_on_the_wire") == []


def test_negative_acknowledgements_once_over_all_hops(answer):
    administration = {
        (message["source_queue_manager"], message["message_id"], message["class"])
        for _, message in MESSAGES
        if message["message_kind"] == "administration_ack" and message["class"] & NEGATIVE
    }
    final = {
        (packet["message_id"].split("\\")[0], packet["acknowledged_message_id"], packet["message_class"])
        for account in ACCOUNTS
        for packet in account.packets.values()
        if packet["kind"] == "final_ack" and packet["message_class"] & NEGATIVE
    }
    for kind, known in (("administration", administration), ("final", final)):
        rows = [row for row in answer("negative_acknowledgements") if row["kind"] == kind]
        found = Counter()
        for row in rows:
            found[row["source_queue_manager"]] += row["messages"]
        assert found == Counter(source for source, _, _ in known)
        assert sorted(row["messages"] for row in rows) == sorted(
            Counter((source, code) for source, _, code in known).values()
        )
        assert len(known) > 5


def test_acknowledgements_asked_for_and_not_got(answer):
    """Of one message the administration queue is on its destination: acknowledgements stay on that machine."""
    expected = {}
    for account in ACCOUNTS:
        for message in account.messages:
            wanted, arrival = message["acknowledgement_requested"], message["arrival_class"]
            refused = arrival is not None and arrival & NEGATIVE
            lacks = {
                "arrival": wanted & 1 and arrival is None,
                "receive": wanted & 2 and message["receive_class"] is None and not refused,
            }
            if any(lacks.values()):
                expected[message["message_id"]] = ", ".join(name for name, is_lacking in lacks.items() if is_lacking)
    found = {row["message_id"]: row for row in answer("acknowledgements_missing")}
    assert {name: row["lacks"] for name, row in found.items()} == expected
    unknown = [row for row in found.values() if row["answer"] == "cannot be known"]
    assert [row["lacks"] for row in unknown] == ["arrival, receive"]
    (queues,) = {(row["admin_queue"].split("\\")[0], row["destination_queue"].split("\\")[0]) for row in unknown}
    assert queues[0] == queues[1]
    assert len(found) > 1


def test_dead_letters(answer):
    expected = defaultdict(set)
    for _, message in MESSAGES:
        classes = (message["final_class"], message["arrival_class"], message["receive_class"])
        dead = next((code for code in classes if code is not None and code & NEGATIVE), None)
        if message["journaling"] & 1 and dead is not None:
            expected[message["source_queue_manager"], dead].add(message["message_id"])
    found = answer("dead_letters")
    assert sorted((row["source_queue_manager"], row["messages"]) for row in found) == sorted(
        (source, len(names)) for (source, _), names in expected.items()
    )
    assert not any(row["presumed"] for row in found)
    assert expected
    listed = {(row["source_queue_manager"], row["message_id"]): row for row in answer("dead_letter_messages")}
    assert listed.keys() == {(source, name) for (source, _), names in expected.items() for name in names}
    for (source, code), names in expected.items():
        for name in names:
            assert listed[source, name]["reason"] == message_class_name(code)
            assert listed[source, name]["reason_text"] == NEGATIVE_CLASS_TEXTS[code]
    assert len(listed) == sum(row["messages"] for row in found) == len(answer("dead_letter_messages"))


def test_hops_of_routed_and_traced_messages(answer):
    hops = defaultdict(dict)
    for _, message in MESSAGES:
        hops[message["message_id"], message["destination_queue"]][hop_of(message)] = message
    expected = {
        (name, *hop): (len(message["reports"]), message["hop_count"])
        for (name, _), of_message in hops.items()
        for hop, message in of_message.items()
        if len(of_message) > 1 or message["reports"] or message["hop_count"]
    }
    found = {
        (row["message_id"], *hop_of(row)): (len(row["reports"] or ()), row["hop_count"])
        for row in answer("message_hops")
    }
    assert found == expected
    assert len(expected) > 10


def test_no_identifier_is_shared_and_no_clock_is_ahead(answer):
    assert answer("shared_identifiers") == []
    clocks = answer("clock_differences")
    sources = {message["source_queue_manager"] for _, message in MESSAGES}
    assert {(row["source_queue_manager"], row["source"]) for row in clocks} == {(each, "transfers") for each in sources}
    assert [row["sender_ahead_s"] for row in clocks] == [None] * len(clocks)


def test_what_applications_could_not_process_and_who_sends_what_to_whom(answer):
    (failed,) = answer("failed_messages")
    assert f"{failed['endpoint']}: {failed['exception_type']}" == BILLING_FAILS
    columns = ("message_type", "queue", "failed_queues", "delayed_retries", "messages", "not_known")
    assert [failed[name] for name in columns] == [
        "Billing.SendInvoice", r"shop\private$\error", [FAILURE["NServiceBus.FailedQ"]], 3, 1, 1
    ]  # fmt: skip
    flows = answer("message_type_flows")
    assert {(row["sender"], row["message_type"], row["destination_queue"]) for row in flows} == {
        ("Website", "Sales.PlaceOrder", r"hq\private$\sales"), ("Sales", "Sales.OrderPlaced", r"bank\private$\billing"),
        ("Billing", "Billing.OrderBilled", r"hq\private$\sales"),
        ("Sales", "Billing.SendInvoice", r"bank\private$\billing"),
    }  # fmt: skip


def test_alerts_are_those_of_the_accounts(lake):
    """Sessions that were refused or reset, full windows, acks that did not come: each is an alert, nothing else is."""
    refused, full, stalled, nacks = set(), set(), Counter(), set()
    for account in ACCOUNTS:
        for line in account.sessions:
            ends = line["client_address"], line["server_address"]
            if line["outcome"] in ("refused", "unanswered", "not_established"):
                refused.add(f"sessions from {ends[0]} to {ends[1]}")
            for side, (sender, receiver) in (("client", ends), ("server", ends[::-1])):
                if line[f"{side}_window_full_ms"] >= LIMITS.window_full_after / timedelta(milliseconds=1):
                    full.add(f"session from {sender} to {receiver}")
        for line in account.sequences:
            stalled[hop_of(line)] += len(line["stalls"])
        nacks |= {
            ("final", packet["message_id"].split("\\")[0], packet["message_class"])
            for packet in account.packets.values()
            if packet["kind"] == "final_ack" and packet["message_class"] & NEGATIVE
        }
        nacks |= {
            ("administration", message["source_queue_manager"], message["class"])
            for message in account.messages
            if message["message_kind"] == "administration_ack" and message["class"] & NEGATIVE
        }
    slow = set()
    for account, message in MESSAGES:
        acked, first = account.packets.get(message["session_acked_by"]), account.sendings(message)[0]
        if acked and acked["sent_at"] - first["sent_at"] >= LIMITS.slow_after / timedelta(microseconds=1) * 1000:
            slow.add("messages from {} to {}".format(*hop_of(message)))
    found = current_alerts(lake, LIMITS).to_pylist()
    assert all(row["since"] <= row["last_seen_at"] <= (row["until"] or row["last_seen_at"]) for row in found)
    subjects = defaultdict(set)
    for row in found:
        subjects[row["condition"]].add(row["subject"])
    assert subjects.pop("sessions_refused") == refused
    assert subjects.pop("window_full", set()) == full
    assert len(subjects.pop("negative_acknowledgements")) == len(nacks)
    stalls = [row for row in found if row["condition"] == "order_acks_stalled"]
    assert len(stalls) == sum(stalled.values())
    assert all(
        row["subject"].endswith("from {} to {}".format(*hop)) for row in stalls for hop in stalled if stalled[hop]
    )
    assert subjects.pop("order_acks_stalled")
    (restored,) = (row for row in found if row["condition"] == "sequence_refused")
    assert (restored["severity"], restored["until"]) == ("error", None)
    assert "number 3 of sequence" in restored["message"]
    del subjects["sequence_refused"]
    assert subjects.pop("transfers_slow", set()) == slow
    (failing,) = subjects.pop("application_failing")
    assert failing.startswith(f"{BILLING_FAILS} from queue manager ")
    assert not subjects


def test_flows_and_queues_of_the_estate(answer):
    """Of each hop messages, sendings and bytes; of each queue its messages once, with the sendings of the last hop."""
    hops, queues, guids = defaultdict(Counter), defaultdict(dict), {}
    for account in ACCOUNTS:
        greeted = {each["session"] for each in account.packets.values() if each["kind"] == "establish_connection"}
        for line in account.sessions:
            if line["session"] in greeted:
                guids[line["client_address"]] = line["initiator_queue_manager"]
                guids[line["server_address"]] = line["acceptor_queue_manager"]
        first_hops = (each for each in account.messages if each["hop_count"] == 0)  # their messages name the sender
        guids |= {each["sender_address"]: each["source_queue_manager"] for each in first_hops}
    for account, message in MESSAGES:
        queue = normalize_queue_name(message["destination_queue"])
        sizes = [packet["length_bytes"] for packet in account.sendings(message)]
        ends = (guids.get(address, address) for address in hop_of(message))
        hops[*ends, queue] += Counter(messages=1, sendings=len(sizes), bytes=sum(sizes))
        queues[queue].setdefault(message["message_id"], defaultdict(list))[message["hop_count"]] += sizes
    counted = ("messages", "sendings", "bytes")
    assert hops == {
        (row["sender"], row["receiver"], row["queue"]): Counter({name: row[name] for name in counted})
        for row in answer("estate_flows") if row["way"] == "tcp_1801"
    }  # fmt: skip
    rows = {row["queue"]: row for row in answer("estate_queues")}
    for queue, messages in queues.items():
        last = [hop[max(hop)] for hop in messages.values()]
        row = rows[queue]
        assert (row["messages"], row["sent_messages"], row["read_messages"]) == (len(messages), len(messages), None)
        assert (row["sendings"], row["sent_bytes"]) == (sum(map(len, last)), sum(map(sum, last)))
        assert row["resendings"] == sum(map(len, last)) - len(messages)
    assert rows.keys() == queues.keys()
    assert any(len(hop) > 1 for messages in queues.values() for hop in messages.values())
