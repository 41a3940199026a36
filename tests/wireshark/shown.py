"""What tshark shows of a capture with msmq.lua: trees of the protocol, with their fields by name."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

DISSECTOR = Path(__file__).parents[2] / "jobs" / "analysis" / "msmq.lua"
LUA_ERROR = "Lua Error"
_NOT_XML = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF], "?")
SECONDS = 120
IN_ORDER = ("-o", "tcp.reassemble_out_of_order:TRUE")


@dataclass
class Tree:
    """A tree of the protocol: a packet of the binary protocol, a ping, or a half of a call; ``ends`` sent it."""

    frame: int
    ends: tuple[str, int, str, int]  # sender's address and port, receiver's address and port
    values: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    headers: Counter[str] = field(default_factory=Counter)  # octets of each header, by name

    def one(self, name: str) -> str | None:
        """The value of a field that is there at most once."""
        found = self.values.get(f"msmq.{name}", [])
        assert len(set(found)) <= 1, (name, found)
        return found[0] if found else None


def run_tshark(path: Path, *arguments: str) -> str:
    """Run tshark with the dissector, in two passes, so that links lead forward too; return its output."""
    command = ["tshark", "-n", "-2", "-X", f"lua_script:{DISSECTOR}", "-r", str(path), *arguments]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
    text = done.stdout.decode("utf-8", "replace")
    assert LUA_ERROR not in text
    assert LUA_ERROR not in done.stderr.decode("utf-8", "replace")
    return text


def trees(path: Path, preferences: Sequence[str] = IN_ORDER) -> list[Tree]:
    """Return the trees of a capture, in order; TCP segments are put in order unless ``preferences`` are others."""
    found = []
    output = run_tshark(path, *preferences, "-Y", "msmq", "-T", "pdml", "-J", "msmq ip ipv6 tcp udp")
    for packet in ET.fromstring(output.translate(_NOT_XML)):
        frame = int(packet.find("proto[@name='geninfo']/field[@name='num']").get("show"))
        names = {each.get("name"): each.get("show") for each in packet.iter("field")}
        carrier = "tcp" if "tcp.srcport" in names else "udp"
        network = "ip" if "ip.src" in names else "ipv6"
        ends = (
            names[f"{network}.src"], int(names[f"{carrier}.srcport"]),
            names[f"{network}.dst"], int(names[f"{carrier}.dstport"]),
        )  # fmt: skip
        for proto in packet.findall("proto[@name='msmq']"):
            tree = Tree(frame, ends)
            for part in proto.iter("proto"):
                tree.headers[part.get("showname").partition(".")[0]] += int(part.get("size"))
            for each in proto.iter("field"):
                tree.values[each.get("name")].append(each.get("show"))
            found.append(tree)
    return found
