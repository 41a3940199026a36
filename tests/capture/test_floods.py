"""A flood of connections that never go on is handed on to other captures within bounds; what goes on is all kept."""

from bench.hostile import half_open
from udfs.capture import open_connections
from udfs.capture.reader import read_capture


def test_of_a_flood_the_newest_are_handed_on(monkeypatch):
    monkeypatch.setattr(open_connections, "MOST_HALF_OPEN", 20)
    monkeypatch.setattr(open_connections, "_ROWS_AT_ONCE", 7)
    data = half_open(50)
    pending = read_capture(data)["pending"].to_pylist()
    assert sorted(row["client_port"] for row in pending) == list(range(1024 + 30, 1024 + 50))
    monkeypatch.setattr(open_connections, "MOST_HALF_OPEN", 50)
    whole = read_capture(data)
    assert whole["pending"].num_rows == 50
    monkeypatch.setattr(open_connections, "_ROWS_AT_ONCE", 4096)
    assert read_capture(data)["pending"].equals(whole["pending"])
    assert whole["capture_files"]["packets"].to_pylist() == [50]
