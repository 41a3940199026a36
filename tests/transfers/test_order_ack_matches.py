"""Which order acks name which sequences: by definition, and without pairs of different sources in memory."""

import tracemalloc

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.transfers.sequences.order_ack_matches import match_order_acks

SEQUENCE_COLUMNS = (
    "sequence_id", "source_queue_manager", "destination_queue_manager", "receiver_queue_manager",
    "sender_queue_manager", "sender_address", "receiver_address",
)  # fmt: skip
ACK_COLUMNS = (
    "sequence_id", "acknowledged_queue_manager", "queue_manager", "sender_queue_manager", "receiver_queue_manager",
    "sender_address", "receiver_address",
)  # fmt: skip


def rows(columns):
    """Rows with one of a few names in each column, or none; an id is always there."""
    names = st.sampled_from([None, "a", "b", "c"])
    return st.lists(st.tuples(st.sampled_from("12"), *[names] * (len(columns) - 1)), max_size=8)


def table(columns, found):
    return pa.table({name: pa.array([row[at] for row in found], pa.string()) for at, name in enumerate(columns)})


def goes_back(sequence, ack, name):
    ways = ("sender", "receiver"), ("receiver", "sender")
    ends = [(sequence[f"{one}_{name}"], ack[f"{other}_{name}"]) for one, other in ways]
    return all(one == other and one is not None for one, other in ends)


def names(sequence, ack):
    """Whether an order ack names a sequence, and whether on the same hop, as ``match_order_acks`` says it."""
    same_hop = goes_back(sequence, ack, "address") or goes_back(sequence, ack, "queue_manager")
    by, destination = ack["queue_manager"], sequence["destination_queue_manager"]
    is_far_end = same_hop or sequence["receiver_queue_manager"] in (None, by)
    from_destination = is_far_end if destination is None else destination == by
    for_source = ack["acknowledged_queue_manager"] in (None, sequence["source_queue_manager"])
    return sequence["sequence_id"] == ack["sequence_id"] and for_source and from_destination, same_hop


@given(rows(SEQUENCE_COLUMNS), rows(ACK_COLUMNS))
def test_order_acks_name_sequences_by_id_and_source(sequences, acks):
    ours, theirs = table(SEQUENCE_COLUMNS, sequences), table(ACK_COLUMNS, acks)
    expected = [
        (at, place, same_hop)
        for at, sequence in enumerate(ours.to_pylist())
        for place, ack in enumerate(theirs.to_pylist())
        for is_named, same_hop in [names(sequence, ack)]
        if is_named
    ]
    assert [*zip(*(each.tolist() for each in match_order_acks(ours, theirs)), strict=True)] == expected


def test_one_id_of_many_sources_does_not_fill_memory():
    """Queue managers that start in the same second use the same ids."""
    many = 3000
    sources = [f"source {at}" for at in range(many)]
    sequences = table(SEQUENCE_COLUMNS, [("1", name, *[None] * 5) for name in sources])
    acks = table(ACK_COLUMNS, [("1", name, *[None] * 5) for name in reversed(sources)])
    tracemalloc.start()
    of_sequence, of_ack, _ = match_order_acks(sequences, acks)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (of_sequence + of_ack == many - 1).all()
    assert len(of_sequence) == many
    assert peak < many * many
