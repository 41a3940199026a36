"""A flood of half-open connections gives a bounded number of pending rows; other connections are all kept."""

from bench.hostile import half_open_connections
from udfs.capture import open_connections
from udfs.capture.capture_reader import read_capture


def test_of_a_flood_the_newest_are_handed_on(monkeypatch):
    monkeypatch.setattr(open_connections, "MAX_HALF_OPEN_CONNECTIONS", 20)
    monkeypatch.setattr(open_connections, "_BATCH_ROWS", 7)
    data = half_open_connections(50)
    pending = read_capture(data)["pending"].to_pylist()
    assert sorted(row["client_port"] for row in pending) == list(range(1024 + 30, 1024 + 50))
    monkeypatch.setattr(open_connections, "MAX_HALF_OPEN_CONNECTIONS", 50)
    whole = read_capture(data)
    assert whole["pending"].num_rows == 50
    monkeypatch.setattr(open_connections, "_BATCH_ROWS", 4096)
    assert read_capture(data)["pending"].equals(whole["pending"])
    assert whole["capture_files"]["packets"].to_pylist() == [50]
