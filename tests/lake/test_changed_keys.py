"""Which rows differ from those of a table: as plain values compared, whatever the types of the columns."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from pipeline.lake.schema_enforcement import alike, changed_keys

FIELDS = pa.struct([("a", pa.int32()), ("b", pa.string())])
TEXTS, NUMBERS = st.none() | st.sampled_from(["", "x", "y"]), st.none() | st.integers(0, 2)
STRUCTS = st.none() | st.fixed_dictionaries({"a": NUMBERS, "b": TEXTS})
VALUES = {
    pa.string(): TEXTS,
    pa.int32(): NUMBERS,
    FIELDS: STRUCTS,
    pa.list_(pa.string()): st.none() | st.lists(TEXTS, max_size=2),
    pa.list_(FIELDS): st.none() | st.lists(STRUCTS, max_size=2),
    pa.list_(pa.list_(pa.int32())): st.none() | st.lists(st.none() | st.lists(NUMBERS, max_size=2), max_size=2),
    pa.struct([("of", pa.list_(FIELDS)), ("n", pa.int32())]): st.none()
    | st.fixed_dictionaries({"of": st.none() | st.lists(STRUCTS, max_size=2), "n": NUMBERS}),
    pa.map_(pa.string(), pa.int32()): st.none() | st.lists(st.tuples(st.sampled_from("xy"), NUMBERS), max_size=2),
}


@st.composite
def columns(draw):
    """Two columns of one type, also as they are behind others, in several parts."""
    kind = draw(st.sampled_from([*VALUES]))
    pairs = draw(st.lists(st.tuples(VALUES[kind], VALUES[kind]), max_size=12))
    begin = draw(st.integers(0, 3))
    one, other = (pa.array([pair[side] for pair in pairs], kind) for side in (0, 1))
    return pa.chunked_array([one, one.slice(begin)]), pa.chunked_array([other, other.slice(begin)])


@settings(max_examples=examples(1000), deadline=None)
@given(both=columns())
def test_values_are_alike_as_in_python(both):
    expected = [a == b for a, b in zip(*(each.to_pylist() for each in both), strict=True)]
    assert alike(*both).to_pylist() == expected


@settings(max_examples=examples(300), deadline=None)
@given(
    now=st.dictionaries(st.sampled_from("abcdef"), STRUCTS), before=st.dictionaries(st.sampled_from("abcdef"), STRUCTS)
)
def test_keys_to_write_and_to_delete(now, before):
    def table(facts, run):
        columns = {"key": pa.array([*facts], pa.string()), "fact": pa.array([*facts.values()], FIELDS)}
        return pa.table({**columns, "run_id": pa.repeat(run, len(facts))})

    fresh, stale = (keys.to_pylist() for keys in changed_keys(table(now, "2"), table(before, "1"), "key"))
    assert sorted(fresh) == sorted(name for name in now if name not in before or now[name] != before[name])
    assert sorted(stale) == sorted(name for name in before if name not in now or now[name] != before[name])
