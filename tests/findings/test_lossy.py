"""Lost packets cause no false finding: a capture with gaps shows no error that the complete one does not.

Nor does it show any other finding as ``complete``.
"""

import random

import pytest

from capture.merge.cutting import layout, plain
from findings.exchanges import H2, Story, app, connection, qc, remote, rr, rr_open
from findings.exchanges import broken as rules
from findings.facts import facts, read
from pipeline.findings import evaluate

SHORT = ("01-remoteread-ndr.pcap", "03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng",
         "09-transactions-and-moves.pcapng")  # fmt: skip
LONG = ("02-remoteread-ndr64-multiplexed.pcap", "05-sealed-ntlm.pcap", "06-mid-stream.pcap",
        "07-faults-cancels-groups.pcap", "10-many-clients.pcap.gz", "11-queued-components.pcap", "12-lookups.pcap",
        "13-kinds-of-messages.pcapng")  # fmt: skip


def some(rng, size):
    """Which records are captured by a machine that drops packets, starts late, or stops early."""
    kept = [True] * size
    way = rng.choice(("a few", "bursts", "begins", "ends", "both"))
    if way in ("a few", "both"):
        share = rng.choice((0.002, 0.01, 0.05, 0.2))
        kept = [rng.random() > share for _ in kept]
    if way == "bursts":
        for _ in range(rng.randint(1, 4)):
            begin, length = rng.randrange(size), rng.randint(1, 60)
            kept = [each and not begin <= at < begin + length for at, each in enumerate(kept)]
    place = rng.randrange(size)
    return [
        each and (way not in ("begins", "both") or at >= place) and (way != "ends" or at <= place)
        for at, each in enumerate(kept)
    ]


def said(path):
    """Errors by rule and time, findings that are complete by rule and text: some are of the first call seen."""
    tables = read(path)
    found = evaluate.evaluate_calls(facts(tables)).to_pylist()
    errors = {(row["rule_id"], row["observed_at"]) for row in found if row["severity"] == "error"}
    return errors | {(row["rule_id"], row["message"]) for row in found if row["confidence"] == "complete"}


def check(project, folder, name, rounds):
    data = plain(project / "data" / "sample" / name)
    units = layout(data).units
    whole = folder / "whole"
    whole.write_bytes(data)
    expected = said(whole)
    for number in rounds:
        kept = some(random.Random(f"{name} {number}"), len(units))
        pieces = [unit.data for unit, captured in zip(units, kept, strict=True) if captured]
        part = folder / f"part{number}"
        part.write_bytes(units[0].opening + b"".join(pieces))
        assert said(part) <= expected, (name, number)


@pytest.mark.parametrize("name", SHORT)
def test_gaps_make_no_error(project, tmp_path, name):
    check(project, tmp_path, name, rounds=range(4))


@pytest.mark.long
@pytest.mark.parametrize("name", [*SHORT, *LONG])
def test_many_gaps_make_no_error(project, tmp_path, name):
    first = random.Random().randrange(1 << 40)
    check(project, tmp_path, name, rounds=range(first, first + 60))


def test_a_handle_of_a_connection_whose_group_is_not_known_is_not_one_that_was_never_given(project, tmp_path):
    """The answer to the bind of one connection was lost, whose association group another one joined."""
    check(project, tmp_path, "07-faults-cancels-groups.pcap", rounds=[1017])


def test_a_fault_of_a_call_whose_request_was_lost_is_of_no_method():
    lost = {"outcome": "no_request", "request_at": None, "fault": 0xC00E0003}
    assert "P13" not in rules([rr_open(handle=None, **lost) | {"opnum": None, "outcome": "no_request"}])
    assert "P13" in rules([rr(6, 1, None, fault=0xC00E0003)])


def test_a_handle_of_an_association_that_another_connection_began_was_given_there():
    calls = remote(rr(6, 3, None, fault=0x1C00001A, context_handle=H2))
    assert "R10" in rules(Story(calls, connections=[connection(last=60.0, association_joined=False)]))
    assert "R10" not in rules(Story(calls, connections=[connection(last=60.0, association_joined=True)]))


def test_a_number_that_may_have_been_given_in_a_gap_is_not_unknown():
    calls = app(qc(4, 1, queue_handle=99))
    assert "C05" in rules(calls)
    assert "C05" not in rules(Story(calls, connections=[connection(closed=20.0, missing_bytes=100)]))
