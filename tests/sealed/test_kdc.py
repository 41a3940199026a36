"""Kerberos with a real KDC (MIT) on loopback: tickets of each encryption type, and keytabs exported by it."""

import asyncio
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from impacket.krb5 import crypto, kerberosv5
from impacket.krb5.asn1 import Ticket
from impacket.krb5.ccache import CCache
from pyasn1.codec.der import decoder

from jobs.command_line.key_file import load_keys
from peer.client import NDR
from peer.client import Client as PeerClient
from peer.kerberos import AES128_SHA2, AES256_SHA2, KerberosClient, KerberosServer, ServiceTicket
from peer.methods import REMOTEREAD
from peer.reading import RemoteReader
from peer.security import PRIVACY
from peer.server import ServerThread
from pipeline.collector.client import Credentials, ManagementClient, RequestError, ServerAddress
from pipeline.collector.transport import RoundBudget, StopSignal
from sealed.impackets_client import open_thrice
from sealed.opened import decrypted_calls, digests, reasons
from sealed.tap import Tap

pytestmark = pytest.mark.tool("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "kvno")

REALM = "MSMQ.EXAMPLE"
COLLECTED = "localhost"  # a name that resolves everywhere, of the service that the collector asks
KINDS = {
    "srv17": ("aes128-cts-hmac-sha1-96", 17), "srv18": ("aes256-cts-hmac-sha1-96", 18), "srv23": ("arcfour-hmac", 23),
    "srv19": ("aes128-cts-hmac-sha256-128", 19), "srv20": ("aes256-cts-hmac-sha384-192", 20),
}  # fmt: skip


@dataclass
class Realm:
    """The folder of a running KDC, and the environment for its clients."""

    folder: Path
    environment: dict[str, str]
    port: int

    def run(self, *command, text=None):
        done = subprocess.run(
            command, env=self.environment, input=text, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, f"{command[0]}: {done.stderr}"
        return done.stdout

    def ticket(self, host):
        """Return a service ticket for the client ``reader``, as impacket's clients take it."""
        cache = self.folder / f"{host}.ccache"
        self.environment["KRB5CCNAME"] = str(cache)
        self.run("kinit", "reader", text="Passw0rd!\n")
        self.run("kvno", f"host/{host}")
        found = CCache.loadFile(str(cache))
        return found.getCredential(f"host/{host}@{REALM}")


@pytest.fixture(scope="module")
def realm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kdc")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    kinds = " ".join(kind for kind, _ in KINDS.values())
    (folder / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n rdns = false\n"
        f" dns_canonicalize_hostname = false\n allow_weak_crypto = true\n allow_rc4 = true\n"
        f" permitted_enctypes = {kinds}\n[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
    )
    (folder / "kdc.conf").write_text(
        f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n[realms]\n {REALM} = {{\n"
        f"  database_name = {folder}/principal\n  key_stash_file = {folder}/stash\n  acl_file = {folder}/acl\n"
        f"  supported_enctypes = {' '.join(f'{kind}:normal' for kind in kinds.split())}\n }}\n"
    )
    (folder / "acl").write_text("")
    # What the environment says of Kerberos stays in force: a KDC may stand elsewhere than it was built for.
    before = os.environ.get("KRB5_CONFIG")
    environment = {
        **os.environ,
        "KRB5_CONFIG": f"{folder}/krb5.conf" + (f":{before}" if before else ""),
        "KRB5_KDC_PROFILE": f"{folder}/kdc.conf",
    }
    made = Realm(folder, environment, port)
    made.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "of no use to anybody")
    made.run("kadmin.local", "-q", "addprinc -pw Passw0rd! reader")
    for host, (kind, _) in {**KINDS, COLLECTED: KINDS["srv18"]}.items():
        made.run("kadmin.local", "-q", f"addprinc -randkey -e {kind}:normal host/{host}")
        if "-sha256" in kind or "-sha384" in kind:  # else the KDC prefers it for session keys, whatever the service has
            made.run("kadmin.local", "-q", f"setstr host/{host} session_enctypes {kind}")
        made.run("kadmin.local", "-q", f"ktadd -norandkey -k {folder}/{host}.keytab host/{host}")
    kdc = subprocess.Popen(["krb5kdc", "-n"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield made
    finally:
        kdc.terminate()
        kdc.wait(10)


def keys_of(realm, host):
    path = realm.folder / f"{host}.yml"
    path.write_text(f"kerberos: [{{keytab: {host}.keytab}}]")
    path.chmod(0o600)
    return load_keys(str(path), print)


QUEUE = "OS:srv1\\private$\\orders"


class Cached(ServiceTicket):
    """A credential of a cache, whose ticket is not in a KDC's response."""

    def ticket(self):
        return decoder.decode(self.reply, asn1Spec=Ticket())[0]


def open_with(port, credential):
    """Open a queue with the test peer's client: impacket's has no session security of RFC 8009."""
    key = crypto.Key(credential["key"]["keytype"], credential["key"]["keyvalue"])
    assert key.enctype in (AES128_SHA2, AES256_SHA2)
    granted = Cached("reader", REALM, credential.ticket["data"], key)

    async def play():
        client = KerberosClient(granted, mutual=True, spnego=True, subkey=True)
        async with PeerClient("127.0.0.1", port, kerberos=client, level=PRIVACY) as rpc:
            await rpc.bind(REMOTEREAD, (NDR,))
            await (await RemoteReader(rpc).open(QUEUE)).close()

    asyncio.run(play())


@pytest.mark.parametrize("host", KINDS)
def test_a_ticket_of_each_encryption_type(realm, host):
    keys = keys_of(realm, host)
    service = {key.enctype: crypto.Key(key.enctype, key.key) for key in keys.kerberos}
    assert set(service) == {KINDS[host][1]}
    granted = realm.ticket(host)
    with ServerThread() as server:
        server.server.service.kerberos = lambda: KerberosServer(service)
        with Tap(server.ports["remoteread"]) as tap:
            if KINDS[host][1] in (AES128_SHA2, AES256_SHA2):
                open_with(tap.port, granted)
            else:
                answers = open_thrice(tap.port, REALM, granted.toTGS(), QUEUE)
                assert all(answer["pphContext"] != bytes(20) for answer in answers)
        told = server.do(lambda manager: manager.ledger.describe("", ""))
    true = [tuple(call[half]["sha256"] for half in ("request", "response")) for call in told["calls"]]
    rows = decrypted_calls([tap.capture()], keys)
    assert digests(rows) == true
    assert {(row["opened_by"], row["outcome"]) for row in rows} == {(f"reader@{REALM}", "ok")}
    other = next(name for name in KINDS if name != host)
    assert reasons(decrypted_calls([tap.capture()], keys_of(realm, other))) == {"no_key"}


@pytest.fixture
def ask(realm, monkeypatch):
    """Query the machine object of a queue manager with Kerberos, as the collector does; returns also how."""
    send = kerberosv5.sendReceive
    monkeypatch.setattr(kerberosv5, "sendReceive", lambda *asked: send(*asked, port=realm.port))  # not port 88
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    service = {key.enctype: crypto.Key(key.enctype, key.key) for key in keys_of(realm, COLLECTED).kerberos}

    def asked(password, *, privacy):
        who = Credentials("kerberos", "reader", REALM, password, privacy=privacy, kdc="127.0.0.1")
        with ServerThread() as server:
            server.server.service.kerberos = lambda: KerberosServer(service)
            address, budget = ServerAddress(COLLECTED, server.ports["remoteread"]), RoundBudget(60, 1 << 20)
            client = ManagementClient(address, who, timeout_s=10, stop_signal=StopSignal(), budget=budget)
            try:
                client.connect()
                return client.get_info(None, [1]).hresult, server.do(lambda manager: list(manager.ledger.calls))
            finally:
                client.close()

    return asked


@pytest.mark.parametrize("privacy", [False, True])
def test_the_collector_logs_on_with_a_ticket_cache(realm, ask, monkeypatch, privacy):
    realm.ticket(COLLECTED)
    monkeypatch.setenv("KRB5CCNAME", realm.environment["KRB5CCNAME"])
    hresult, calls = ask("", privacy=privacy)
    assert hresult == 0
    assert {(call.interface, call.auth_type, call.sealed) for call in calls} == {("qmmgmt", 9, privacy)}


def test_the_collector_is_told_that_its_password_is_wrong(ask):
    with pytest.raises(RequestError) as told:
        ask("Passw0rd?", privacy=True)
    assert (told.value.code, told.value.retryable) == ("unauthenticated", False)
