"""The declarations of all decoded RPC methods, by interface name and opnum."""

from __future__ import annotations

from typing import Final

from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM2_NAME, QMCOMM_NAME, QMMGMT_NAME, REMOTE_READ_NAME
from udfs.stubs import qm2qm, qmcomm, qmcomm2, qmmgmt, remote_read
from udfs.stubs.idl import Method

MethodsByInterface = dict[str, dict[int, Method]]


def _by_opnum(methods: tuple[Method, ...]) -> dict[int, Method]:
    return {method.opnum: method for method in methods}


REMOTE_READ_METHODS: Final[MethodsByInterface] = {
    QM2QM_NAME: _by_opnum(qm2qm.METHODS),
    REMOTE_READ_NAME: _by_opnum(remote_read.METHODS),
}
MANAGEMENT_METHODS: Final[MethodsByInterface] = {QMMGMT_NAME: _by_opnum(qmmgmt.METHODS)}
CLIENT_METHODS: Final[MethodsByInterface] = {
    QMCOMM_NAME: _by_opnum(qmcomm.METHODS),
    QMCOMM2_NAME: _by_opnum(qmcomm2.METHODS),
}
ALL_METHODS: Final[MethodsByInterface] = REMOTE_READ_METHODS | MANAGEMENT_METHODS | CLIENT_METHODS
