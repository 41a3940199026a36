"""One message from its sender over a router into a queue, read there remotely, and acknowledged: one key joins all."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from engines import without_spark
from jobs import run_all, trace_message
from pcapgen import rpc
from pcapgen.containers import pcap
from pcapgen.conversation import START_NS, Flow, records, segments
from pcapgen.model import Dialogue
from pipeline.lake.lake import Lake
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.messages import MESSAGES
from schemas.transfers import MESSAGE_TRANSFERS
from stubs.helpers import peer_stub
from transfers_peer.reading import DATA, account_lines, messages, of

RECORDING = "06-two-hops"
RECEIVE, ACKNOWLEDGED = 0, 2  # ulAction, dwAck
HANDLE, HELD = bytes.fromhex("00000000" + "5a" * 16), bytes.fromhex("00000000" + "a5" * 16)
SHOP, HQ, RELAY = "10.77.106.1", "10.77.106.2", "10.77.106.4"


def followed_message():
    """A transactional message that was received: both of its hops, as the peer tells them."""
    lines = of(account_lines(RECORDING), "message")
    name = next(line["message_id"] for line in lines if line["transactional"] and line["outcome"] == "received")
    return [line for line in lines if line["message_id"] == name]


def remote_read(packet, after_ns):
    """A pcap file of a reader that takes a message from a queue of its owner, over qm2qm."""

    def desc(buffer):
        return {
            "hRemoteQueue": 3, "hCursor": 0, "ulAction": RECEIVE, "ulTimeout": 0, "dwSize": len(buffer or b""),
            "dwQueue": 3, "dwRequestID": 1, "Reserved": 1, "dwArriveTime": after_ns // 1_000_000_000, "eAckNack": 0,
            "lpBuffer": buffer,
        }  # fmt: skip

    dialogue = Dialogue(Flow(client="10.77.106.9", client_port=50_123, server=HQ))
    dialogue.bind(rpc.Context(0, rpc.QM2QM))
    licence = {"pLicGuid": UUID(int=1), "dwMQS": 1, "hQueue": 3, "pQueue": 3, "dwpContext": 7}
    for opnum, name, request, response in (
        (2, "RemoteQMOpenQueue", licence, {"phContext": HANDLE, "return": 0}),
        (0, "RemoteQMStartReceive", {"lpRemoteReadDesc": desc(None)},
         {"pphContext": HELD, "lpRemoteReadDesc": desc(packet), "return": 0}),
        (1, "RemoteQMEndReceive", {"pphContext": HELD, "dwAck": ACKNOWLEDGED}, {"pphContext": bytes(20), "return": 0}),
    ):  # fmt: skip
        stubs = (
            peer_stub(name, side, values, ndr64=False, order="<")
            for side, values in (("request", request), ("response", response))
        )
        dialogue.call(opnum, *stubs)
    shift = after_ns - START_NS
    return pcap(records(dialogue.flow, [part.shifted(shift) for part in segments(dialogue.script)])).data


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("journey")
    hops, exchange = followed_message(), of(account_lines(RECORDING), "exchange")[0]
    recording = DATA / exchange["capture"]
    ordinal = int(hops[0]["message_id"].partition("\\")[2])
    guid = hops[0]["message_id"].partition("\\")[0]
    found = [packet for packet in messages(recording) if _identifier(packet) == (guid, ordinal)]
    assert len(found) == len(hops) == 2
    size = int.from_bytes(found[-1][8:12], "little")  # without the SessionHeader behind it
    (folder / "read.pcap").write_bytes(remote_read(found[-1][:size], exchange["ended_at"] + 5_000_000_000))
    captures = [str(recording), str(folder / "read.pcap")]
    assert run_all.main(["--lake", str(folder / "lake"), "--captures", *captures]) == 0
    return Lake(without_spark(), str(folder / "lake"))


def _identifier(packet):
    """SourceQueueManager and MessageID of the UserHeader."""
    return str(UUID(bytes_le=packet[16:32])), int.from_bytes(packet[56:60], "little")


def test_one_key_leads_from_the_wire_to_the_read_and_back(lake):
    hops = followed_message()
    transfers = lake.select(MESSAGE_TRANSFERS, "message_id IN {names}", names=[hops[0]["message_id"]]).to_pylist()
    by_hop = {(row["sender_address"], row["receiver_address"]): row for row in transfers}
    assert by_hop.keys() == {(SHOP, RELAY), (RELAY, HQ)}
    (key,) = {row["message_key"] for row in transfers}
    seen = lake.select(MESSAGES, "message_key IN {keys}", keys=[key]).to_pylist()
    assert sorted(row["seen_in"] for row in seen) == ["binary_protocol", "binary_protocol", "qm2qm"]
    (read,) = lake.select(ACK_SEQUENCES, "message_key IN {keys}", keys=[key]).to_pylist()
    assert read["fate"] == "consumed"
    (attempt,) = lake.select(RECEIVE_ATTEMPTS, "message_key IN {keys}", keys=[key]).to_pylist()
    assert attempt["outcome"] == "acked"
    for row in transfers:
        assert row["outcome"] == "received"  # the final acknowledgement of the recording
        assert row["first_sent_at"] < row["session_acked_at"] < attempt["returned_at"]


def test_the_trace_has_the_hops_and_the_read_on_one_line_of_time(lake, capsys):
    assert trace_message.main(["--lake", lake.root, "--id", followed_message()[0]["message_id"], "--json"]) == 0
    story, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert summary["messages"] == 1
    hops = [(hop["sender_address"], hop["receiver_address"], hop["outcome"]) for hop in story["hops"]]
    assert hops == [(SHOP, RELAY, "received"), (RELAY, HQ, "received")]
    assert story["sender"]["sender_address"] == SHOP  # and not the router
    assert [fate["fate"] for fate in story["fates"]] == ["consumed"]
    times = [event["at"] for event in story["events"]]
    assert None not in times
    assert times == sorted(times)
    kinds = [event["kind"] for event in story["events"] if event["clock"] == "capture"]
    assert [kind for kind in kinds if kind in ("sending", "final ack", "start", "seen", "ended")] == [
        "sending", "sending", "final ack", "final ack", "start", "seen", "ended",
    ]  # fmt: skip
    assert next(event["text"] for event in story["events"] if event["kind"] == "ended").startswith("acked")
    shown = {event["capture"].rpartition("/")[2] for event in story["events"] if event["capture"]}
    assert shown == {f"{RECORDING}.pcapng", "read.pcap"}
