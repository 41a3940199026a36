"""tshark, with the same password or keytab, decrypts the same stubs, octet for octet.

Only stubs that tshark decrypts are compared: version 4.0 shows random octets as decrypted for NTLM with 56-bit keys,
without key exchange or in SPNEGO, and for AES without mutual authentication. For these the test queue manager gives
the expected stubs (``test_ntlm_traffic``, ``test_kerberos``), and [MS-NLMP] 4.2.3.4 the result of 56 bits without key
exchange (``test_nlmp``).
"""

import asyncio
import subprocess
from collections import defaultdict

import pytest

from peer.client import NDR, NDR64, Client
from peer.kerberos import AES128, AES256, RC4, KerberosClient, KerberosServer, forge_ticket
from peer.methods import REMOTEREAD
from peer.reading import NACK, RemoteReader
from peer.security import PRIVACY
from peer.server import ACCOUNT, ServerThread
from sealed.opened import decrypted_calls, password
from sealed.tap import Tap, capture_of, one_frame_each
from sealed.test_kerberos import REALM, SECRETS, SERVICE, keytab
from sealed.test_key_file import keytab as keytab_file

pytestmark = pytest.mark.tool("tshark")

TRAILER = 96  # octets that may stand behind our stub: a verification trailer, and padding


def by_tshark(capture, tmp_path, *preferences):
    """Return stubs by call id and PDU type, as decrypted by tshark."""
    path = tmp_path / "sealed.pcap"
    path.write_bytes(capture)
    options = [item for each in preferences for item in ("-o", each)]
    done = subprocess.run(
        ["tshark", "-n", "-r", str(path), "-d", "tcp.port==2103,dcerpc", *options, "-o",
         "dcerpc.reassemble_dcerpc:FALSE", "-Y", "dcerpc.decrypted_stub_data", "-T", "fields", "-e",
         "dcerpc.cn_call_id", "-e", "dcerpc.pkt_type", "-e", "dcerpc.decrypted_stub_data"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = defaultdict(bytes)
    for line in done.stdout.splitlines():
        call_id, kind, data = line.split("\t")
        found[int(call_id), {"0": "request", "2": "response"}[kind]] += bytes.fromhex(data.replace(":", ""))
    return found


def agree(rows, theirs):
    assert len(theirs) == 2 * len(rows) > 4
    for row in rows:
        assert row["opened_by"] is not None
        for half in ("request", "response"):
            ours, other = row[f"{half}_stub"], theirs[row["call_id"], half]
            assert other[: len(ours)] == ours
            assert len(other) - len(ours) <= TRAILER


def recorded(accept=None, **options):
    async def play(port):
        async with Client("127.0.0.1", port, level=PRIVACY, verification=True, **options) as rpc:
            await rpc.bind(REMOTEREAD, (NDR, NDR64))
            reader = await RemoteReader(rpc).open("OS:srv1\\private$\\orders")
            for _ in range(4):
                await reader.receive(NACK)
            await reader.close()

    with ServerThread() as server:
        server.server.service.kerberos = accept
        with Tap(server.ports["remoteread"]) as tap:
            asyncio.run(play(tap.port))
    return capture_of(one_frame_each(tap.heard[0]))


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_with_the_password(tmp_path, order):
    capture = recorded(account=ACCOUNT, order=order)
    agree(decrypted_calls([capture], password(ACCOUNT.password)),
          by_tshark(capture, tmp_path, f"ntlmssp.nt_password:{ACCOUNT.password}"))  # fmt: skip


@pytest.mark.parametrize(("kind", "mutual"), [(AES128, True), (AES256, True), (RC4, True), (RC4, False)])
def test_with_the_keytab(tmp_path, kind, mutual):
    client = KerberosClient(forge_ticket(SERVICE, REALM, SECRETS[kind]), mutual=mutual, spnego=True, subkey=not mutual)
    capture = recorded(lambda: KerberosServer(SECRETS), kerberos=client)
    path = tmp_path / "srv1.keytab"
    path.write_bytes(keytab_file((f"{SERVICE}@{REALM}", kind, SECRETS[kind].contents)))
    theirs = by_tshark(capture, tmp_path, "kerberos.decrypt:TRUE", f"kerberos.file:{path}")
    agree(decrypted_calls([capture], keytab(kind)), theirs)
