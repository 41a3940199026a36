"""What more than an answer became of a call is told by its images, whatever they come as."""

import pyarrow as pa
import pytest

from pipeline.findings.changed_calls import ChangedCalls
from pipeline.findings.inputs import HEADS

ASKED = {"call_key": "a", "connection_id": "c1", "server_address": "s", "interface_name": "qm2qm", "opnum": 9,
         "outcome": "no_response", "at": 1, "done": 1, "open": True, "unread": False, "opened": False}  # fmt: skip
ANSWERED = ASKED | {"outcome": "ok", "done": 5, "open": False}
OPENING = ASKED | {"opnum": 2, "unread": True, "opened": True}


def of(*images):
    rows = [image | {"is": there, "_commit_version": version} for version, there, image in images]
    schema = pa.schema(
        [(name, pa.string()) for name in ("call_key", "connection_id", "server_address", "interface_name", "outcome")]
        + [(name, pa.int64()) for name in ("opnum", "at", "done", "_commit_version")]
        + [(name, pa.bool_()) for name in ("open", "unread", "opened", "is")]
        + [(name, {"bigint": pa.int64(), "binary": pa.binary()}[kind]) for name, kind in HEADS.items()]
    )
    return ChangedCalls.of(pa.Table.from_pylist(rows, schema))


@pytest.mark.parametrize(
    ("images", "spoilt", "servers"),
    [
        pytest.param([(1, True, ANSWERED)], set(), set(), id="it came"),
        pytest.param([(1, False, ASKED), (1, True, ANSWERED)], set(), set(), id="it was answered"),
        pytest.param([(1, False, ASKED), (2, True, ANSWERED)], set(), set(), id="taken out and put in again"),
        pytest.param([(1, False, ANSWERED), (1, True, ANSWERED)], set(), set(), id="seen once more"),
        pytest.param([(1, False, ANSWERED), (1, True, ANSWERED | {"done": 4})], {"c1"}, set(), id="at another time"),
        pytest.param([(1, False, ANSWERED | {"unread": True}), (1, True, ANSWERED)], {"c1"}, set(), id="now read"),
        pytest.param([(1, False, OPENING), (1, True, OPENING | ANSWERED)], {"c1"}, {"s"}, id="an opening answered"),
        pytest.param([(1, False, ASKED)], {"c1"}, set(), id="it went"),
        pytest.param([(1, True, ASKED), (2, False, ASKED), (2, True, ASKED | {"connection_id": "c2"})], set(), set(),
                     id="new, and on another connection"),
        pytest.param([(2, True, ASKED | {"connection_id": "c2"}), (2, False, ASKED)], {"c1", "c2"}, set(),
                     id="on another connection"),
    ],
)  # fmt: skip
def test_what_more_than_an_answer_became_of_a_call(images, spoilt, servers):
    changed = of(*images)
    assert (changed.spoilt, changed.spoilt_servers - {None}) == (spoilt, servers)


def test_times_are_those_of_all_images():
    changed = of((1, False, ASKED), (1, True, ANSWERED), (1, True, ASKED | {"call_key": "b", "connection_id": "c2"}))
    assert changed.span(["c1"]) == (1, 5)
    assert changed.span(["c2", "other"]) == (1, 1)
    assert changed.span([]) == (0, 0)
    assert sorted(changed.rows["call_key"].to_pylist()) == ["a", "b"]
