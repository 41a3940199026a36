"""Sessions on other ports than 1801: recognised by the first octets of a side, in this capture or in another one."""

from __future__ import annotations

import pytest

from pcapgen import containers, frames
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from pcapgen.reading import to_rows
from udfs.capture.capture_reader import CaptureReadRequest, read_capture
from udfs.capture.connection_merge import merge_connections

PORT = 4711


def session(server="10.0.0.1", client="10.0.0.9", size=3000, count=12):
    script = tcp.Script()
    for side, data in packets.handshake():
        script.send(side, data)
    for number in range(count):
        script.send(0, packets.message(bytes([number]) * size, header=packets.session_header(number)))
    return tcp.Flow(client=client, server=server, server_port=PORT), tcp.segments(script)


def capture(flow, parts, link=frames.ethernet):
    return containers.pcap(tcp.records(flow, parts, link), magic=containers.NANOSECONDS).data


@pytest.mark.parametrize("ends", [("10.0.0.1", "10.0.0.9"), ("fe80::1", "fe80::9")])
@pytest.mark.parametrize("link", [frames.ethernet, lambda packet: frames.ethernet(packet, vlans=((0x8100, 7),))])
def test_it_is_read_over_ipv4_and_ipv6_and_without_its_syn(ends, link):
    flow, parts = session(*ends)
    for taken in (parts, [part for part in parts if not part.flags & frames.SYN]):
        tables = read_capture(capture(flow, taken, link))
        assert {row["sent_by"] for row in to_rows(tables["session_packets"])} == {"client", "server"}
        assert tables["session_packets"].num_rows == 4 + 12
        (connection,) = to_rows(tables["connections"])
        assert (connection["client_address"], connection["client_port"]) == (flow.client, flow.client_port)


def test_who_asks_first_is_the_client_whatever_the_ports():
    flow, parts = session()
    turned = tcp.Flow(server_port=60_000, client_port=1801)
    tables = read_capture(capture(turned, [part for part in parts if not part.flags & frames.SYN]))
    assert {(row["client_port"], row["server_port"]) for row in to_rows(tables["session_packets"])} == {(1801, 60_000)}
    del flow


@pytest.mark.parametrize("port", [1801, PORT])
@pytest.mark.parametrize("block_bytes", [300, 16 << 20])
def test_an_answer_whose_request_was_not_captured_is_of_the_server(port, block_bytes):
    """Also where another capture has the request, read before or after."""
    _, parts = session()
    flow = tcp.Flow(server_port=port, client_port=port - 1)  # the higher port is the server's
    asked = next(at for at, part in enumerate(parts) if part.payload)
    late = read_capture(capture(flow, parts[asked + 1 :]), block_bytes=block_bytes)
    found = {(row["kind"], row["sent_by"], row["client_port"]) for row in to_rows(late["session_packets"])}
    assert found == {
        ("establish_connection", "server", flow.client_port),
        ("connection_parameters", "client", flow.client_port),
        ("connection_parameters", "server", flow.client_port),
        ("user_message", "client", flow.client_port),
    }
    early = read_capture(capture(flow, [part for part in parts[: asked + 1] if not part.flags & frames.SYN]))
    pending = [*early["pending"].to_pylist(), *late["pending"].to_pylist()]
    for order in (pending, pending[::-1]):
        (connection,) = to_rows(merge_connections(order).tables["connections"])
        assert connection["client_port"] == flow.client_port


def test_the_middle_of_it_is_read_again_when_another_capture_shows_the_beginning():
    flow, parts = session()
    first, second = parts[:9], parts[9:]
    one, two = (read_capture(capture(flow, taken)) for taken in (first, second))
    assert not two["session_packets"].num_rows
    merged = merge_connections([*one["pending"].to_pylist(), *two["pending"].to_pylist()])
    asked = {label["capture_id"]: label["again"] for label in merged.connection_labels.to_pylist()}
    (capture_id,) = two["capture_files"]["capture_id"].to_pylist()
    assert asked[capture_id] == ["binary_protocol"]
    request = CaptureReadRequest(reread_endpoints=(f"{flow.server}|{PORT}|binary_protocol",))
    again = read_capture(capture(flow, second), request=request)
    assert again["session_packets"].num_rows > 0
    both = merge_connections([*one["pending"].to_pylist(), *again["pending"].to_pylist()])
    assert {label["again"] and tuple(label["again"]) for label in both.connection_labels.to_pylist()} == {None}


@pytest.mark.parametrize("port", [PORT, 2103])
@pytest.mark.parametrize("block_bytes", [300, 16 << 20])
def test_a_side_that_waits_for_its_order_is_looked_at_when_it_begins(port, block_bytes):
    """Where a block ends before a side begins, nothing is decided: not on a port of RPC either."""
    flow = tcp.Flow(server_port=port)
    parts = [tcp.Segment(tcp.START_NS, 0, 0, 0, frames.ACK, packets.establish_connection())]
    tables = read_capture(capture(flow, parts), block_bytes=block_bytes)
    assert [row["kind"] for row in to_rows(tables["session_packets"])] == ["establish_connection"]
    late = [
        *tcp.handshake(),
        tcp.Segment(tcp.START_NS + 10**6, 0, 20, 0, frames.ACK, packets.establish_connection()[20:]),
    ]
    late.append(tcp.Segment(tcp.START_NS + 2 * 10**6, 0, 0, 0, frames.ACK, packets.establish_connection()[:20]))
    tables = read_capture(capture(flow, late), block_bytes=block_bytes)
    assert [row["complete"] for row in to_rows(tables["session_packets"])] == [True]
