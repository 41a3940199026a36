"""Column decoder and single-value decoder agree on valid packets, damaged packets and arbitrary bytes."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from example_counts import examples
from messages import strategies as made
from messages.reading import column, one, single

THOROUGH = settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))


@THOROUGH
@given(made.packets, st.sampled_from(made.PROTOCOLS))
def test_on_packets(packet, protocol):
    one(packet.bytes(), protocol)


@THOROUGH
@given(made.mutated(), st.sampled_from(made.PROTOCOLS))
def test_on_damaged_packets(raw, protocol):
    one(raw, protocol)


@THOROUGH
@given(made.cut_into_sections())
def test_on_sections(cut):
    raw, sections = cut
    one(raw, "RemoteRead", sections)


@THOROUGH
@given(st.binary(max_size=300), st.sampled_from(made.PROTOCOLS))
def test_on_arbitrary_bytes(raw, protocol):
    one(raw, protocol)


ROWS = st.one_of(
    st.tuples(st.none() | made.mutated(), st.sampled_from(made.PROTOCOLS), st.none()),
    made.cut_into_sections().map(lambda cut: (cut[0], "RemoteRead", cut[1])),
)


@THOROUGH
@given(st.lists(ROWS, max_size=12))
def test_on_columns_of_mixed_rows(rows):
    """The values of one row do not depend on other rows."""
    packets, protocols, sections = zip(*rows, strict=True) if rows else ((), (), ())
    found = column(list(packets), list(protocols) or "qm2qm", list(sections))
    expected = [({}, []) if raw is None else single(raw, kind, cut) for raw, kind, cut in rows]
    assert found == expected
