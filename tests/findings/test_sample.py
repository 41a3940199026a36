"""The sample captures: the deliberate errors that data/README.md lists are found, and nothing else."""

import random
from collections import Counter

import pyarrow as pa
import pytest

from findings.exchanges import broken, qm_end, qm_start, remote, rr_end, rr_start, session
from findings.facts import facts, plain, read
from pipeline.findings import evaluate, find_violations
from pipeline.findings.columns import call_columns
from pipeline.findings.rules.registry import PROTOCOL_RULES

# The errors that data/README.md lists, and those of what a client never closes or ends.
ERRORS = {
    "01-remoteread-ndr.pcap": "R01 R16 R18 R19 R22 R30 R50 R51",
    "02-remoteread-ndr64-multiplexed.pcap": "",
    "03-qm2qm-dependent-client.pcap": "Q07 Q07 Q18 Q18 Q35 Q35 Q40 Q40 Q45 Q45",
    "04-qmmgmt.pcapng": "M02 M04 M11",
    "05-sealed-ntlm.pcap": "R14 R14 R14",
    "06-mid-stream.pcap": "",
    "07-faults-cancels-groups.pcap": "P01 Q35 R10 R11 R11 R14 R14 R30",
    "08-endpoint-mapper.pcap": "",
    "09-transactions-and-moves.pcapng": "R57 R58 R64 R67 R69 R69",
    "10-many-clients.pcap.gz": "R14 R14",
    "11-queued-components.pcap": "K01 K01",
    "12-lookups.pcap": "Q06 R19 R22 R22 R22 R23 R24 R26",
    "13-kinds-of-messages.pcapng": "",
}


@pytest.fixture(scope="module")
def sample(project):
    return {name: read(project / "data" / "sample" / name) for name in ERRORS}


@pytest.mark.parametrize("name", ERRORS)
def test_the_errors_of_a_capture_are_those_that_were_made(sample, name):
    rows = evaluate.evaluate_calls(facts(sample[name])).to_pylist()
    assert sorted(row["rule_id"] for row in rows if row["severity"] == "error") == ERRORS[name].split()
    assert not any(row["subject"].startswith("server") for row in rows if row["severity"] == "error")
    keys = set(sample[name]["rpc_calls"]["call_key"].to_pylist())
    for row in rows:
        assert row["call_key"] in row["evidence"]
        assert keys.issuperset(row["evidence"])
        assert row["observed_at"] is not None
        assert row["expected"] == PROTOCOL_RULES[row["rule_id"]].requirement
        assert row["actual"]


def test_the_estate_and_conversations_without_a_fault_give_no_error(project):
    found = evaluate.evaluate_calls(facts(read(project / "data" / "estate" / "wire" / "collector.pcap.gz")))
    assert Counter(found["severity"].to_pylist())["error"] == 0
    both = [session(qm_start(), qm_end()), remote(rr_start(), rr_end()), remote(), session()]
    assert [broken(story) & set(PROTOCOL_RULES) for story in both] == [set(), set(), set(), set()]


TABLES = 4  # fields of EvaluationInput; the others are no tables


def test_the_order_of_rows_other_servers_and_parts_make_no_difference(sample, monkeypatch):
    every = [facts(tables) for tables in sample.values()]
    # the captures share addresses, but no connection: each gets a server of its own
    expected = {}
    parts = []
    for number, given in enumerate(every):
        moved = [_at(table, f"10.9.9.{number}") for table in given[:TABLES]]
        expected |= plain(evaluate.evaluate_calls(evaluate.EvaluationInput(*moved)))
        parts.append(moved)
    together = [*map(_joined, zip(*parts, strict=True))]
    assert plain(evaluate.evaluate_calls(evaluate.EvaluationInput(*together))) == expected
    assert plain(evaluate.evaluate_calls(evaluate.EvaluationInput(*map(_shuffled, together)))) == expected
    monkeypatch.setattr(find_violations, "_CALLS_AT_ONCE", 7)
    assert plain(evaluate.evaluate_calls(evaluate.EvaluationInput(*together))) == expected
    monkeypatch.setattr(call_columns, "_MAX_SHARED_BYTES", 0)  # nothing is kept from condition to condition
    assert plain(evaluate.evaluate_calls(evaluate.EvaluationInput(*together))) == expected


def _joined(tables):
    return pa.concat_tables(tables, promote_options="default")


def _at(table, server):
    place = table.column_names.index("server_address")
    return table.set_column(place, "server_address", pa.array([server] * len(table)))


def _shuffled(table):
    places = list(range(len(table)))
    random.Random(9).shuffle(places)
    return table.take(pa.array(places, pa.int64()))


def test_what_is_not_touched_is_not_judged(sample):
    given = facts(sample["10-many-clients.pcap.gz"])
    whole = plain(evaluate.evaluate_calls(given))
    chosen = sorted(set(given.connections["connection_id"].to_pylist()))[:5]
    few = plain(evaluate.evaluate_calls(given, only_connections=chosen))
    assert few == {key: row for key, row in whole.items() if row["connection_id"] in chosen or row["scope"] == "server"}
