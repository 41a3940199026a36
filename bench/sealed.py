"""Benchmark of decryption: stubs decrypted per second on one core, compared with tshark on the same file."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.measure import Measure, log_progress
from bench.traffic import (
    ACK,
    BODY_POOL,
    EPOCH_US,
    REMOTE_READ,
    SYN,
    Packet,
    TcpConnection,
    build_bind,
    build_bind_ack,
    write_pcaps,
)

RESPONSE_STUB_BYTES = (200, 3_000, 24_000)  # used in turn
CALLS_PER_CONNECTION = 300


def _connection(slot: int) -> Iterator[Packet]:
    """Yield the packets of one connection: an NTLM handshake, then sealed calls."""
    from peer.pdu import Auth, Pdu, PduType, parse  # noqa: PLC0415 (the tests' own peer)
    from peer.security import NTLM_TYPE, PRIVACY, NtlmClient, NtlmContext, NtlmServer  # noqa: PLC0415
    from peer.server import ACCOUNT  # noqa: PLC0415

    flow = TcpConnection(
        client=bytes((10, 1, slot >> 8, slot & 255)), client_port=49200, server=bytes((10, 0, 0, 1)), server_port=2103,
        now_us=EPOCH_US + slot * 1000, timestamps=False, next_seq=[1000 * slot, 77 * slot], slot=slot,
    )  # fmt: skip
    yield flow.frame(0, SYN)
    yield flow.frame(1, SYN | ACK)
    yield flow.frame(0, ACK)
    client, server = NtlmClient(ACCOUNT), NtlmServer([ACCOUNT])

    def secured(plain: bytes, token: bytes) -> bytes:
        pdu = parse(plain)
        made: bytes = Pdu(pdu.type, pdu.call_id, pdu.body, pdu.flags, Auth(NTLM_TYPE, PRIVACY, 7, token)).pack()
        return made

    yield from flow.send(0, secured(build_bind(1, REMOTE_READ, ndr64=False), client.negotiate()))
    challenge = server.challenge_for(client.negotiate())
    yield from flow.send(1, secured(build_bind_ack(1, 2103, ndr64=False, group=7), challenge))
    token, asking = client.authenticate(challenge)
    answering: NtlmContext = server.accept(token)[1]
    third = Pdu(PduType.AUTH3, 1, bytes(4), 3, Auth(NTLM_TYPE, PRIVACY, 7, token)).pack()
    auth = Auth(NTLM_TYPE, PRIVACY, 7)
    for call in range(CALLS_PER_CONNECTION):
        flow.now_us += 100
        request = asking.protect(Pdu(0, call + 2, struct.pack("<IHH", 56, 0, 7) + bytes(56), 3), 8, auth)
        yield from flow.send(0, third + request if not call else request)
        flow.now_us += 100
        size = RESPONSE_STUB_BYTES[call % len(RESPONSE_STUB_BYTES)]
        stub, at, sent = BODY_POOL[call * 997 % 500_000 :][:size], 0, b""
        while at < size:
            part = stub[at : at + 5760]
            flags = (1 if not at else 0) | (2 if at + len(part) == size else 0)
            body = struct.pack("<IHBB", size - at, 0, 0, 0) + part
            sent += answering.protect(Pdu(2, call + 2, body, flags), 8, auth)
            at += len(part)
        yield from flow.send(1, sent)


def generate_capture(folder: Path, total: int) -> Path:
    """Write a capture with about ``total`` bytes of sealed calls."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = (packet for slot in range(1 << 16) for packet in _connection(slot))
    (path,) = write_pcaps(stream, [folder / "sealed.pcap"], total)
    return path


def time_decryption(path: Path) -> tuple[float, float, int, int]:
    """Read and decrypt a capture.

    Return the seconds for both, the seconds for decryption alone, the number of decrypted stubs, and their bytes.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    from peer.server import ACCOUNT  # noqa: PLC0415
    from pipeline.bronze.decryption import decrypt_rows  # noqa: PLC0415
    from udfs.capture.capture_reader import read_capture  # noqa: PLC0415
    from udfs.sealed.decryption_keys import DecryptionKeys, NtlmKey  # noqa: PLC0415
    from udfs.sealed.security_contexts import build_security_contexts  # noqa: PLC0415
    from udfs.sealed.security_tokens import tokens_from_rows  # noqa: PLC0415

    keys = DecryptionKeys((NtlmKey.from_password("*", ACCOUNT.password),))
    begin = time.perf_counter()
    tables = read_capture(path)
    read = time.perf_counter()
    tokens: defaultdict[str, list[Any]] = defaultdict(list)
    for row in tables["rpc_binds"].to_pylist():
        tokens[row["connection_id"]] += tokens_from_rows(row["handshake"] or [])
    contexts = {name: build_security_contexts(each, keys) for name, each in tokens.items()}
    rows = decrypt_rows(tables["rpc_calls"].combine_chunks(), contexts)
    end = time.perf_counter()
    opened = rows.filter(pc.is_valid(rows["opened_by"]))
    stubs = [opened[name].drop_null() for name in ("request_stub", "response_stub")]
    size = sum(pc.sum(pc.binary_length(each)).as_py() or 0 for each in stubs)
    assert pa.types.is_binary(stubs[0].type)
    return end - begin, end - read, sum(len(each) for each in stubs), size


def time_tshark(path: Path) -> tuple[float, int]:
    """Return the seconds that tshark takes to decrypt the PDUs with the password, and the number of PDUs."""
    from peer.server import ACCOUNT  # noqa: PLC0415

    command = ["tshark", "-n", "-r", str(path), "-d", "tcp.port==2103,dcerpc", "-o",
               f"ntlmssp.nt_password:{ACCOUNT.password}", "-Y", "dcerpc.decrypted_stub_data", "-T", "fields",
               "-e", "dcerpc.decrypted_stub_data"]  # fmt: skip
    begin = time.perf_counter()
    out = subprocess.run(command, capture_output=True, check=True).stdout
    return time.perf_counter() - begin, out.count(b"\n") + out.count(b",")


def measure(folder: Path, total: int, repeat: int) -> list[Measure]:
    """Measure decryption with this project and with tshark; each value is the best of ``repeat`` runs."""
    log_progress(f"sealed: a capture of {total / 1e6:.0f} MB")
    path = generate_capture(folder, total)
    log_progress("sealed: decrypting")
    runs = [time_decryption(path) for _ in range(repeat)]
    whole, _, stubs, size = min(runs)
    out = [
        Measure("sealed: stubs", stubs, ""),
        Measure("sealed: from file to opened stubs", stubs / whole, "/s"),
        Measure("sealed: opening alone", stubs / min(run[1] for run in runs), "/s"),
        Measure("sealed: opening alone, of stubs", size / 1e6 / min(run[1] for run in runs), "MB/s"),
    ]
    if shutil.which("tshark"):
        log_progress("sealed: tshark")
        seconds = min(time_tshark(path)[0] for _ in range(repeat))
        out.append(Measure("sealed: tshark, with the password", stubs / seconds, "/s"))
        out.append(Measure("sealed: speed against tshark", seconds / whole, "x", 2.0, 10.0))
    return out
