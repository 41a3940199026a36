"""Lines of snapshot files: what is a snapshot, and what goes to quarantine with which reason."""

import io
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.snapshot_files import failed, machine, queue
from udfs.keys import key
from udfs.properties import snapshot_lines
from udfs.properties.snapshot_lines import BrokenLineError, parse_snapshot_line, read_snapshot_rows


def test_a_line_is_a_row_with_its_key():
    row = parse_snapshot_line(json.dumps(queue(7)).encode())
    assert row["asked_at"] == datetime(2024, 5, 1, 12, tzinfo=UTC)
    assert row["snapshot_id"] == key("qm1", "DIRECT=OS:qm1\\private$\\a", 1714564800000000)
    assert row["properties"][2] == {"property_id": 7, "vt": 19, "value_json": "7"}
    assert parse_snapshot_line(json.dumps(machine()).encode())["snapshot_id"] == key("qm1", None, 1714564800000000)


def test_hresults_are_unsigned_and_a_time_may_have_another_offset():
    row = parse_snapshot_line(json.dumps(failed(hresult=-1072824317, asked_at="2024-05-01T14:00:00+02:00")).encode())
    assert (row["hresult"], row["asked_at"]) == (0xC00E0003, datetime(2024, 5, 1, 12, tzinfo=UTC))


def test_a_value_that_is_json_itself_is_put_into_a_text():
    row = parse_snapshot_line(
        json.dumps(queue(properties=[{"property_id": 12, "vt": 4127, "value_json": ["a"]}])).encode()
    )
    assert row["properties"][0]["value_json"] == '["a"]'


WHOLE = json.dumps(queue())
LATEST = datetime(2024, 5, 3, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe", "not_json"),
        (b"[1]", "not_json"),
        (b"[" * 100_000, "not_json"),
        (WHOLE.encode()[:200], "not_json"),
        (b"{}", "unknown_version"),
        (json.dumps(queue(version=2)).encode(), "unknown_version"),
        (json.dumps(queue(version=True)).encode(), "unknown_version"),
        (json.dumps(queue(version="1")).encode(), "unknown_version"),
        (json.dumps(queue(queue_manager="")).encode(), "malformed"),
        (json.dumps(queue(queue_manager=3)).encode(), "malformed"),
        (json.dumps(queue(object_type="session")).encode(), "malformed"),
        (json.dumps(queue(format_name=None)).encode(), "malformed"),
        (json.dumps(machine(format_name="DIRECT=OS:a\\b")).encode(), "malformed"),
        (json.dumps(queue(asked_at=None)).encode(), "malformed"),
        (json.dumps(queue(asked_at="2024-05-01T12:00:00")).encode(), "malformed"),
        (json.dumps(queue(asked_at="0001-01-01T00:00:00+12:00")).encode(), "malformed"),
        (json.dumps(queue(asked_at="9999-12-31T23:59:59.999999-12:00")).encode(), "malformed"),
        (json.dumps(queue(asked_at="9999-12-31T23:59:59.999999Z")).encode(), "time_ahead"),
        (json.dumps(queue(asked_at="2024-05-03T12:00:00.000001Z")).encode(), "time_ahead"),
        (json.dumps(queue(collected_at="2105-01-01T00:00:00Z")).encode(), "time_ahead"),
        (json.dumps(queue(collected_at="soon")).encode(), "malformed"),
        (json.dumps(queue(hresult=2**32)).encode(), "malformed"),
        (json.dumps(queue(hresult=0.0)).encode(), "malformed"),
        (json.dumps(queue(properties={})).encode(), "malformed"),
        (json.dumps(queue(properties=[{"property_id": "7"}])).encode(), "malformed"),
        (json.dumps(queue(properties=[{"property_id": 7, "vt": 1 << 16}])).encode(), "malformed"),
    ],
)
def test_what_is_no_snapshot_has_a_reason(line, reason):
    with pytest.raises(BrokenLineError, match=f"^{reason}$"):
        parse_snapshot_line(line, LATEST)


def test_the_latest_time_is_not_ahead_and_without_a_clock_any_time_is_one():
    for at, latest in (("2024-05-03T12:00:00Z", LATEST), ("9999-12-31T23:59:59.999999Z", None)):
        assert parse_snapshot_line(json.dumps(queue(asked_at=at, collected_at=None)).encode(), latest)["asked_at"]


def test_broken_lines_have_their_place_and_the_rest_is_used():
    data = b"\xef\xbb\xbf" + WHOLE.encode() + b"\n\n  \nbroken\r\n" + json.dumps(machine()).encode()
    rows = list(read_snapshot_rows(io.BytesIO(data), "f"))
    assert [row["source_line"] for row in rows] == [1, 4, 5]
    broken = rows[1]
    assert (broken["reason"], broken["sample"]) == ("not_json", b"broken\r")
    assert data[broken["byte_offset"] :][: broken["size_bytes"]] == b"broken\r"
    assert "reason" not in rows[0] | rows[2]


def test_a_line_that_is_too_long_is_passed_over(monkeypatch):
    monkeypatch.setattr(snapshot_lines, "MAX_LINE_BYTES", 3000)
    monkeypatch.setattr(snapshot_lines, "_BLOCK_BYTES", 700)
    long = json.dumps(queue(error="x" * 5000)).encode()
    rows = list(read_snapshot_rows(io.BytesIO(long + b"\n" + WHOLE.encode() + b"\n"), "f"))
    assert [(row["source_line"], row.get("reason")) for row in rows] == [(1, "line_too_long"), (2, None)]
    assert (rows[0]["size_bytes"], rows[0]["sample"]) == (len(long), long[:256])


@given(cuts=st.integers(1, 400), texts=st.lists(st.text(max_size=30), max_size=20))
def test_lines_do_not_depend_on_how_they_are_read(cuts, texts):
    data = "\n".join(texts).encode("utf-8", "replace")

    class Slow(io.BytesIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:cuts])

    found = [(line.number, line.offset, line.data) for line in snapshot_lines.iterate_lines(Slow(data))]
    at, expected = 0, []
    for number, part in enumerate(data.split(b"\n"), 1):
        if part.strip():
            expected.append((number, at, part))
        at += len(part) + 1
    assert [(n, o, d) for n, o, d in found if not d.startswith(b"\xef\xbb\xbf")] == expected or b"\xef\xbb\xbf" in data


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from([*list(queue()), "vt"]), inner),
        max_leaves=12,
    )
)
def test_any_json_is_a_row_or_a_reason(value):
    record = {**queue(), **value} if isinstance(value, dict) else value
    try:
        row = parse_snapshot_line(json.dumps(record).encode())
    except BrokenLineError:
        return
    assert row["queue_manager"]
    assert row["properties"] is None or all(-(2**31) <= each["property_id"] < 2**31 for each in row["properties"])
