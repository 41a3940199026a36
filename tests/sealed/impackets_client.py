"""An RPC client of impacket with Kerberos: an independent implementation that calls the test queue manager."""

from impacket.dcerpc.v5 import rpcrt, transport

from peer.methods import BY_NAME, REMOTEREAD
from peer.reading import open_arguments
from peer.security import PRIVACY


def open_thrice(port, realm, ticket, queue, level=PRIVACY):
    """Open a queue over RemoteRead three times on one connection; returns the responses."""
    binding = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:127.0.0.1[{port}]")
    binding.set_credentials("reader", "", realm, TGS=ticket)
    binding.set_kerberos(True)
    rpc = binding.get_dce_rpc()
    rpc.set_auth_type(rpcrt.RPC_C_AUTHN_GSS_NEGOTIATE)
    rpc.set_auth_level(level)
    rpc.connect()
    rpc.bind(REMOTEREAD.uuid.bytes_le + REMOTEREAD.version.to_bytes(4, "little"))
    method, answers = BY_NAME["R_OpenQueue"], []
    for _ in range(3):
        rpc.call(method.opnum, method.request(open_arguments(queue), ndr64=False))
        answers.append(method.parse_response(rpc.recv(), ndr64=False))
    rpc.disconnect()
    return answers
