"""Captures of one direction alone: what the other side said is not known, and every row says why."""

import pytest

from pcapgen import containers
from pcapgen.conversation import CLIENT, SERVER
from pcapgen.exchanges import Damage, recorded, tap
from schemas.bronze import CONNECTIONS
from schemas.findings import FINDINGS
from schemas.sessions import SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES
from transfers.in_memory import transfers_of
from transfers_peer.reading import DATA

BOTH = ["capture_loss", "one_direction"]
SETTLED = {"received", "rejected"}


def one_direction(name, side):
    """What is concluded from the packets of one side of a recording, and from all."""
    talks = recorded(DATA / name)
    captures = [tap(talks, Damage(one_side=each)) for each in (side, None)]
    return [transfers_of([containers.pcap(each.records).data]) for each in captures]


@pytest.fixture(scope="module")
def lakes():
    """A recording in which the client sends and the server acknowledges, as only the client's packets show it."""
    return one_direction("05-resends.pcap", CLIENT)


def test_bytes_that_the_other_side_acknowledged_are_missing(lakes):
    lake, whole = lakes
    every = {row["client_port"]: row for row in whole.rows(CONNECTIONS).to_pylist()}
    for row in lake.rows(CONNECTIONS).to_pylist():
        assert row["uncaptured_side"] == "server"
        assert 0 <= row["missing_bytes"] - every[row["client_port"]]["server_bytes"] <= 1  # a FIN is acknowledged too
        assert every[row["client_port"]]["uncaptured_side"] is None


def test_what_became_of_messages_is_not_known(lakes):
    lake, _ = lakes
    rows = lake.rows(MESSAGE_TRANSFERS).to_pylist()
    assert {row["outcome"] for row in rows} == {"unknown", "delivered"}
    assert all(row["missing"] == BOTH and row["confidence"] == "partial" for row in rows)


def test_sequences_say_so(lakes):
    lake, _ = lakes
    rows = lake.rows(TRANSFER_SEQUENCES).to_pylist()
    assert rows
    assert all({*BOTH} <= {*row["missing"]} and row["refusals"] is None for row in rows)


def test_no_rule_judges_what_was_not_captured(lakes):
    lake, whole = lakes
    assert [row["rule_id"] for row in lake.rows(FINDINGS).to_pylist()] == []
    assert [row["rule_id"] for row in whole.rows(FINDINGS).to_pylist()] == []


@pytest.mark.parametrize("side", [CLIENT, SERVER])
@pytest.mark.parametrize("name", ["01-handshakes.pcap", "05-resends.pcap"])
def test_a_session_whose_other_side_was_not_captured_is_not_called_unanswered(name, side):
    """Nor not established: its handshake is acknowledged."""
    lake, whole = one_direction(name, side)
    happened = {row["client_port"]: row["outcome"] for row in whole.rows(SESSIONS).to_pylist()}
    one_sided = [row for row in lake.rows(SESSIONS).to_pylist() if row["uncaptured_side"] is not None]
    assert one_sided
    for row in one_sided:
        assert row["outcome"] in {"unknown", happened[row["client_port"]]}


def test_a_capture_of_both_directions_says_nothing_of_it():
    _, whole = one_direction("03-transactions.pcapng", CLIENT)
    for table in (MESSAGE_TRANSFERS, TRANSFER_SEQUENCES):
        assert not {code for row in whole.rows(table).to_pylist() for code in row["missing"]} & {*BOTH}
