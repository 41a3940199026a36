"""Who a client says it is in a handshake: recorded NTLM and Kerberos, the examples of [MS-NLMP], damaged messages."""

import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.kerberos import AES256, forge_ticket
from peer.server import ACCOUNT
from sealed.test_kerberos import REALM, SECRETS, SERVICE, read, recorded
from sealed.test_nlmp import AUTHENTICATE
from udfs.capture.capture_reader import read_capture
from udfs.sealed.claimed_identity import ANONYMOUS, ClaimedIdentity, NtlmNames, identities_by_context
from udfs.sealed.security_tokens import AUTH_TYPE_KERBEROS, AUTH_TYPE_NTLM, HandshakeToken

READER = f"{ACCOUNT.domain}\\{ACCOUNT.user}"
DOMAIN, USER, WORKSTATION = 28, 36, 44  # fields of an AUTHENTICATE message


def token(message, *, context=7, from_client=True, auth_type=AUTH_TYPE_NTLM):
    return HandshakeToken(from_client, 0, len(message), 0, auth_type, 6, context, message)


def authenticate(section="4.2.4"):
    return bytes.fromhex(AUTHENTICATE[section])


def without(message, *fields):
    """The message with empty fields."""
    message = bytearray(message)
    for at in fields:
        struct.pack_into("<HH", message, at, 0, 0)
    return bytes(message)


@pytest.mark.parametrize("section", AUTHENTICATE)
def test_the_examples_of_the_specification(section):
    assert identities_by_context([token(authenticate(section))]) == {7: ClaimedIdentity("Domain\\User", "COMPUTER")}


def test_what_a_message_does_not_say_is_unknown_and_a_logon_without_a_name_is_anonymous():
    message = authenticate()
    claimed = {
        "no domain": without(message, DOMAIN),
        "no workstation": without(message, WORKSTATION),
        "no user": without(message, USER),
        "anonymous": without(message, USER, 20),
        "workstation outside": message[:WORKSTATION]
        + struct.pack("<HHI", 16, 16, 1 << 20)
        + message[WORKSTATION + 8 :],
    }
    found = {name: identities_by_context([token(each)])[7] for name, each in claimed.items()}
    assert found == {
        "no domain": ClaimedIdentity("User", "COMPUTER"),
        "no workstation": ClaimedIdentity("Domain\\User"),
        "no user": ClaimedIdentity(None, "COMPUTER"),
        "anonymous": ClaimedIdentity(ANONYMOUS, "COMPUTER"),
        "workstation outside": ClaimedIdentity("Domain\\User"),
    }


def test_each_context_has_its_own_and_only_clients_are_believed():
    tokens = [token(authenticate(), from_client=False), token(authenticate(), context=1), token(authenticate()[:40])]
    assert identities_by_context(tokens) == {1: ClaimedIdentity("Domain\\User", "COMPUTER")}


@given(st.binary(max_size=80), st.sampled_from([AUTH_TYPE_NTLM, AUTH_TYPE_KERBEROS, 9]))
def test_nothing_is_read_outside_a_message(tail, auth_type):
    for message in (b"NTLMSSP\0\3\0\0\0" + tail, b"\x6e" + tail, tail):
        for claimed in identities_by_context([token(message, auth_type=auth_type)]).values():
            assert isinstance(claimed, ClaimedIdentity)
    assert NtlmNames.parse(bytes(52)) == NtlmNames("", "", "", is_anonymous=True)


SAMPLE = "05-sealed-ntlm.pcap"  # its clients are impacket, which names no workstation, and the test peer


def test_every_bind_of_the_sealed_sample_says_who(project):
    rows = read_capture(str(project / "data" / "sample" / SAMPLE))["rpc_binds"].to_pylist()
    secured = [row for row in rows if row["auth_type"] is not None]
    assert {row["auth_principal"] for row in secured} == {READER}
    assert {row["auth_workstation"] for row in secured} == {None, "CLI1"}
    assert {row["auth_principal"] for row in rows if row["auth_type"] is None} <= {None}


@pytest.mark.tool("tshark")
def test_tshark_reads_the_same_names_on_each_connection(project):
    path = project / "data" / "sample" / SAMPLE
    names = ("tcp.srcport", "ntlmssp.auth.domain", "ntlmssp.auth.username", "ntlmssp.auth.hostname")
    fields = [option for name in names for option in ("-e", name)]
    done = subprocess.run(
        ["tshark", "-n", "-r", str(path), "-d", "tcp.port==2103,dcerpc", "-Y", "ntlmssp.messagetype==3", "-T", "fields",
         *fields],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = {
        (int(port), f"{domain}\\{user}", None if workstation == "NULL" else workstation)
        for port, domain, user, workstation in (line.split("\t") for line in done.stdout.splitlines())
    }
    rows = read_capture(str(path))["rpc_binds"].to_pylist()
    found = {(row["client_port"], row["auth_principal"], row["auth_workstation"]) for row in rows}
    assert {each for each in found if each[1] is not None} == expected
    assert len(expected) > 5


@pytest.mark.parametrize("around", [True, False], ids=["in SPNEGO", "bare"])
def test_kerberos_names_the_service_and_not_the_client(around):
    granted = forge_ticket(SERVICE, REALM, SECRETS[AES256])
    tap, _ = recorded(read(granted, mutual=True, spnego=around, subkey=False))
    rows = read_capture(tap.capture())["rpc_binds"].to_pylist()
    assert {row["auth_service"] for row in rows if row["handshake"] is not None} == {f"{SERVICE}@{REALM}"}
    assert {(row["auth_principal"], row["auth_workstation"]) for row in rows} == {(None, None)}
