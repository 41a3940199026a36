"""Alterations of calls, other than responses, are found in images of the change feed."""

import pyarrow as pa
import pytest

from pipeline.findings.changed_calls import ChangedCalls
from pipeline.findings.inputs import STUB_COLUMN_TYPES

ASKED = {"call_key": "a", "connection_id": "c1", "server_address": "s", "interface_name": "qm2qm", "opnum": 9,
         "outcome": "no_response", "started_us": 1, "ended_us": 1, "is_unanswered": True,
         "was_unreadable": False, "is_opening": False}  # fmt: skip
ANSWERED = ASKED | {"outcome": "ok", "ended_us": 5, "is_unanswered": False}
OPENING = ASKED | {"opnum": 2, "was_unreadable": True, "is_opening": True}


def of(*images):
    rows = [image | {"is_current": there, "_commit_version": version} for version, there, image in images]
    schema = pa.schema(
        [(name, pa.string()) for name in ("call_key", "connection_id", "server_address", "interface_name", "outcome")]
        + [(name, pa.int64()) for name in ("opnum", "started_us", "ended_us", "_commit_version")]
        + [(name, pa.bool_()) for name in ("is_unanswered", "was_unreadable", "is_opening", "is_current")]
        + [(name, {"bigint": pa.int64(), "binary": pa.binary()}[kind]) for name, kind in STUB_COLUMN_TYPES.items()]
    )
    return ChangedCalls.from_images(pa.Table.from_pylist(rows, schema))


@pytest.mark.parametrize(
    ("images", "connections", "servers"),
    [
        pytest.param([(1, True, ANSWERED)], set(), set(), id="added"),
        pytest.param([(1, False, ASKED), (1, True, ANSWERED)], set(), set(), id="answered"),
        pytest.param([(1, False, ASKED), (2, True, ANSWERED)], set(), set(), id="deleted and inserted"),
        pytest.param([(1, False, ANSWERED), (1, True, ANSWERED)], set(), set(), id="captured again"),
        pytest.param([(1, False, ANSWERED), (1, True, ANSWERED | {"ended_us": 4})], {"c1"}, set(), id="other time"),
        pytest.param([(1, False, ANSWERED | {"was_unreadable": True}), (1, True, ANSWERED)], {"c1"}, set(),
                     id="readable now"),
        pytest.param([(1, False, OPENING), (1, True, OPENING | ANSWERED)], {"c1"}, {"s"}, id="an opening answered"),
        pytest.param([(1, False, ASKED)], {"c1"}, set(), id="deleted"),
        pytest.param([(1, True, ASKED), (2, False, ASKED), (2, True, ASKED | {"connection_id": "c2"})], set(), set(),
                     id="new, and on another connection"),
        pytest.param([(2, True, ASKED | {"connection_id": "c2"}), (2, False, ASKED)], {"c1", "c2"}, set(),
                     id="on another connection"),
    ],
)  # fmt: skip
def test_what_more_than_an_answer_became_of_a_call(images, connections, servers):
    changed = of(*images)
    assert (changed.updated_connections, changed.servers_with_updated_open_calls - {None}) == (connections, servers)


def test_times_are_those_of_all_images():
    changed = of((1, False, ASKED), (1, True, ANSWERED), (1, True, ASKED | {"call_key": "b", "connection_id": "c2"}))
    assert changed.time_span(["c1"]) == (1, 5)
    assert changed.time_span(["c2", "other"]) == (1, 1)
    assert changed.time_span([]) == (0, 0)
    assert sorted(changed.rows["call_key"].to_pylist()) == ["a", "b"]
