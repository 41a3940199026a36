"""Every method whose stubs are decoded, by interface and opnum."""

from __future__ import annotations

from typing import Final

from udfs.dcerpc.interfaces import QM2QM, QMCOMM, QMCOMM2, QMMGMT, REMOTE_READ
from udfs.stubs import qm2qm, qmcomm, qmcomm2, qmmgmt, remote_read
from udfs.stubs.method import Method

Methods = dict[str, dict[int, Method]]


def _by_opnum(methods: tuple[Method, ...]) -> dict[int, Method]:
    return {method.opnum: method for method in methods}


REMOTE_READS: Final[Methods] = {QM2QM.name: _by_opnum(qm2qm.METHODS), REMOTE_READ.name: _by_opnum(remote_read.METHODS)}
MANAGEMENT: Final[Methods] = {QMMGMT.name: _by_opnum(qmmgmt.METHODS)}
CLIENT: Final[Methods] = {QMCOMM.name: _by_opnum(qmcomm.METHODS), QMCOMM2.name: _by_opnum(qmcomm2.METHODS)}
ALL: Final[Methods] = REMOTE_READS | MANAGEMENT | CLIENT
