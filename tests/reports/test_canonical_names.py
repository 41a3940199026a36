"""The SQL of canonical queue names is held to the Python that gold is made with."""

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.silver.canonical_queues import with_canonical_queues
from udfs.queues.alias_groups import canonical_queue_name
from udfs.queues.normal_form import normalize_queue_name

GUID = "3f2504e0-4f89-11d3-9a0c-0305e82c3301"
PATHS = (
    "shop1\\private$\\orders", "shop1\\orders", ".\\private$\\orders", "10.0.0.7\\private$\\o", "ü\\private$\\größe",
    "shop1\\private$\\it's 100%", "shop1\\private$\\a_b",
)  # fmt: skip
BASES = (
    *PATHS, f"public={GUID}", f"private={GUID}\\0000000a", f"dl={GUID}", "direct=http://shop1/msmq/private$/orders",
    "direct=https://shop1/msmq/a;b", "multicast=234.1.1.1:8001", f"connector={GUID}", f"machine={GUID}", "",
)  # fmt: skip
SUFFIXES = ("", ";journal", ";deadletter", ";xactonly", ";sub", ";sub;deep", ";", ",shop2\\orders", ",a;journal")
names = st.builds(str.__add__, st.sampled_from(BASES), st.sampled_from(SUFFIXES))


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect() as opened:
        yield opened


def canonical_names(connection, queues, known):
    """Return the canonical names of queues by the SQL."""
    rows = pa.table({"position": list(range(len(queues))), "queue": pa.array(queues, pa.string())})
    # As silver.queue_aliases, which has a row for each piece of evidence.
    aliases = [{"queue": name, "canonical_queue": canonical} for name, canonical in known.items() for _ in range(2)]
    schema = pa.schema({"queue": pa.string(), "canonical_queue": pa.string()})
    connection.register("seen", rows)
    connection.register("aliases", pa.Table.from_pylist(aliases, schema))
    sql = with_canonical_queues("seen", {"queue": "rows.queue"}, "position", "aliases")
    return [row[1] for row in connection.sql(f"SELECT * FROM {sql} ORDER BY position").fetchall()]


@settings(deadline=None)
@given(st.lists(st.none() | names, min_size=1), st.dictionaries(names, names, max_size=5))
@example([f"{PATHS[0]};journal", PATHS[0], f"public={GUID};journal"], {f"public={GUID}": PATHS[0]})
@example(["direct=https://shop1/msmq/a;b"], {"direct=https://shop1/msmq/a": PATHS[0]})
@example([f"{PATHS[0]},{PATHS[1]};journal"], {f"{PATHS[0]},{PATHS[1]}": PATHS[1]})
def test_sql_and_python_agree(connection, queues, known):
    expected = [canonical_queue_name(queue, known) for queue in queues]
    assert canonical_names(connection, queues, known) == expected


@pytest.mark.parametrize(
    "format_name",
    ["DIRECT=OS:Shop1\\PRIVATE$\\Orders", "DIRECT=TCP:10.0.0.7\\Private$\\o;JOURNAL", f"PUBLIC={GUID.upper()};Journal",
     f"PRIVATE={GUID}\\A", "DIRECT=HTTP://Shop1/msmq/Private$/Orders;x", "DIRECT=OS:a\\b,DIRECT=OS:c\\d;journal"],
)  # fmt: skip
def test_normal_forms_of_format_names_follow_their_queue(connection, format_name):
    queue = normalize_queue_name(format_name)
    for known in ({queue: "shop2\\q"}, {queue.partition(";")[0]: "shop2\\q"}, {}):
        assert canonical_names(connection, [queue], known) == [canonical_queue_name(queue, known)]
