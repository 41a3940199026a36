"""Two network namespaces connected by a wire of MTU 1500, to record real network traffic."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CLONE_NEWNET = 0x4000_0000
SIOCETHTOOL = 0x8946
# ETHTOOL_S...: receive and transmit checksums, scatter-gather, TSO, GSO, GRO; off, so that frames are as on a wire
OFFLOADS = {"rx": 0x15, "tx": 0x17, "sg": 0x19, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}


def ip(*arguments: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def enter(name: str) -> None:
    """Move the calling thread, and threads that it starts, into a named namespace."""
    with Path("/run/netns", name).open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {name}")


def disable_offloads(interface: str) -> None:
    """Do what `ethtool -K` does, without that program; called inside the namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for command in OFFLOADS.values():
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            request = struct.pack("16sP", interface.encode(), ctypes.addressof(value))
            try:
                fcntl.ioctl(sock, SIOCETHTOOL, request)
            except OSError:
                continue  # not settable on this kernel: the recorder checks the frames' sizes afterwards


@dataclass(frozen=True)
class Wire:
    """Names and addresses of the pair."""

    server: str
    client: str
    server_address: str = "10.77.0.1"
    client_addresses: tuple[str, ...] = ("10.77.0.2", "10.77.0.3", "10.77.0.4")
    interface: str = "wire0"

    @classmethod
    def build(cls) -> Wire:
        """Make both namespaces and the veth pair; needs the right to do so (CAP_NET_ADMIN)."""
        tag = f"{os.getpid():x}"
        wire = cls(f"peer-s-{tag}", f"peer-c-{tag}")
        try:
            for name in (wire.server, wire.client):
                ip("netns", "add", name)
            ip("link", "add", wire.interface, "netns", wire.server, "mtu", "1500", "type", "veth",
               "peer", "name", wire.interface, "netns", wire.client)  # fmt: skip
            ip("-n", wire.client, "link", "set", wire.interface, "mtu", "1500")
            ends = ((wire.server, (wire.server_address,)), (wire.client, wire.client_addresses))
            for name, addresses in ends:
                for address in addresses:
                    ip("-n", name, "addr", "add", f"{address}/24", "dev", wire.interface)
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", wire.interface, "up")
        except BaseException:
            wire.remove()
            raise
        return wire

    def remove(self) -> None:
        """Delete the namespaces; the veth pair goes with them."""
        for name in (self.server, self.client):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)

    def into(self, name: str) -> Callable[[], None]:
        """What a thread calls first to live in that namespace."""

        def work() -> None:
            enter(name)
            disable_offloads(self.interface)

        return work


class Tcpdump:
    """tcpdump on one end of the wire, from `start` to `stop`."""

    def __init__(self, wire: Wire, path: Path, *options: str, packets: str = "tcp") -> None:
        self.wire = wire
        self.path = path
        self.options = options
        self.packets = packets
        self._process: subprocess.Popen[bytes] | None = None
        self.report = ""

    def start(self) -> None:
        """Start recording; returns once tcpdump listens."""
        log = self.path.with_suffix(".log")
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", self.wire.server, "tcpdump", "-i", self.wire.interface, "-s", "0", "-U",
                 "-B", "16384", "-Z", "root", "-w", str(self.path), *self.options, self.packets],
                stderr=errors,
            )  # fmt: skip
        for _ in range(200):
            if "listening on" in log.read_text():
                time.sleep(0.2)
                return
            time.sleep(0.05)
        raise RuntimeError(f"tcpdump does not start: {log.read_text()}")

    def stop(self) -> None:
        """Wait for the last packets, then stop."""
        if self._process is None:
            return
        time.sleep(0.5)
        self._process.terminate()
        self._process.wait(10)
        self._process = None
        self.report = self.path.with_suffix(".log").read_text()
        if "0 packets dropped by kernel" not in self.report:
            raise RuntimeError(f"tcpdump lost packets: {self.report}")
