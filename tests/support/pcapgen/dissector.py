"""tshark's list of the PDUs in a capture: (frame, stream, type, call id, opnum, fragment length)."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

Listed = tuple[int, int, int, int, int | None, int]
FIELDS = ("frame.number", "tcp.stream", "dcerpc.pkt_type", "dcerpc.cn_call_id", "dcerpc.opnum", "dcerpc.cn_frag_len")
REQUEST, RESPONSE, FAULT = 0, 2, 3


def tshark(path: Path) -> list[Listed]:
    """Return the PDUs that tshark lists with its default preferences, without PDUs over SMB, which have no own stream.

    PDML is used, because the columns of a frame with several PDUs do not show which value belongs to which PDU. tshark
    shows a response with the opnum of its request; on the wire only requests have one.
    """
    command = ["tshark", "-n", "-r", str(path), "-Y", "dcerpc.ver == 5 && tcp && !smb && !smb2", "-T", "pdml"]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    return parse(output)


def parse(pdml: bytes) -> list[Listed]:
    """Return the PDUs in tshark's PDML: one ``proto`` named dcerpc per PDU."""
    listed = []
    for packet in ET.fromstring(pdml):
        frame = stream = None
        for proto in packet.iter("proto"):
            name = proto.get("name")
            if name == "frame":
                frame = _value(proto, "frame.number")
            elif name == "tcp":
                stream = _value(proto, "tcp.stream")
            elif name == "dcerpc" and frame is not None and stream is not None:
                kind, call_id = _value(proto, "dcerpc.pkt_type"), _value(proto, "dcerpc.cn_call_id")
                size, opnum = _value(proto, "dcerpc.cn_frag_len"), _value(proto, "dcerpc.opnum")
                if kind is not None and call_id is not None and size is not None:
                    listed.append((frame, stream, kind, call_id, opnum if kind == REQUEST else None, size))
    return listed


def _value(proto, name: str) -> int | None:
    for field in proto.iter("field"):
        if field.get("name") == name:
            return int(field.get("show") or "0", 0)
    return None


def recorded(path: Path) -> tuple[str, list[Listed]]:
    """Return the SHA-256 of the capture that a stored list belongs to, and the list."""
    kept = json.loads(path.read_text())
    return kept["sha256"], [tuple(row) for row in kept["pdus"]]


def record(path: Path, sha256: str, listed: list[Listed]) -> None:
    """Store a list, one PDU per line, with the SHA-256 of its capture."""
    lines = ",\n  ".join(json.dumps(row) for row in listed)
    path.write_text(f'{{"sha256": {json.dumps(sha256)}, "fields": {json.dumps(FIELDS)}, "pdus": [\n  {lines}\n]}}\n')


def difference(ours: list[Listed], theirs: list[Listed]) -> tuple[list[Listed], list[Listed]]:
    """Return the PDUs that only the reader lists, and those that only tshark lists."""
    mine, other = Counter(ours), Counter(theirs)
    return sorted((mine - other).elements(), key=repr), sorted((other - mine).elements(), key=repr)
