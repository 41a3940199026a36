"""Whether a call succeeded, by what its method returned: one rule, for Python and for SQL.

* qm2qm, RemoteRead ([MS-MQQP] 3.1.4, [MS-MQRR] 3.1.4): MQ_OK is success.
* qmmgmt ([MS-MQMR] 3): 0 is success, any other value is a failure; a server may return Win32 codes.
* qmcomm, qmcomm2 ([MS-MQMP] 3.1.4): MQ_OK and the informational HRESULTs of [MS-MQMQ] 2.4 are success: what was asked
  is done, but a property was ignored.
* A method that returns a port returns 0 on failure ([MS-MQRR] 3.1.4.1).

Methods without a return value succeed unless they answer with a fault. A fault is no result: callers ask for it first.
"""

from __future__ import annotations

from typing import Final

from udfs.codes import MQ_OK
from udfs.dcerpc.interfaces import QMCOMM2_NAME, QMCOMM_NAME, QMMGMT_NAME

_WITH_INFORMATION: Final = (QMCOMM_NAME, QMCOMM2_NAME)
_FIRST_INFORMATION: Final = 0x400E0001
_LAST_INFORMATION: Final = 0x400E00FF  # above, the codes say that a read is remote, or was cancelled: no success


def call_succeeded(interface: str, hresult: int | None, returned_port: int | None = None) -> bool | None:
    """Return whether a call with this result succeeded; None where its method has no result, or it is not known."""
    if hresult is None:
        return None if returned_port is None else returned_port != 0
    informs = interface in _WITH_INFORMATION and _FIRST_INFORMATION <= hresult <= _LAST_INFORMATION
    return hresult == MQ_OK or informs


def succeeded_sql(interface: str, hresult: str = "hresult", returned_port: str | None = None) -> str:
    """Return SQL for ``call_succeeded``.

    ``interface`` is the SQL of the interface's name: a column, or a literal in quotes. The others are columns.
    """
    exactly, information = f"{hresult} = {MQ_OK}", f"{hresult} BETWEEN {_FIRST_INFORMATION} AND {_LAST_INFORMATION}"
    if not interface.startswith("'"):
        names = ", ".join(map(repr, _WITH_INFORMATION))
        succeeded = f"({exactly} OR ({interface} IN ({names}) AND {information}))"
    else:
        succeeded = f"({exactly} OR {information})" if interface.strip("'") in _WITH_INFORMATION else f"({exactly})"
    if returned_port is None:
        return succeeded
    return f"CASE WHEN {hresult} IS NULL THEN {returned_port} <> 0 ELSE {succeeded} END"


QMMGMT_SUCCEEDED_SQL: Final = succeeded_sql(f"'{QMMGMT_NAME}'")
"""The SQL condition of snapshots, and of qmmgmt calls, that succeeded."""


def response_ms_sql(requested: str, responded: str, clocks: str) -> str:
    """Return the SQL of the time from a request to its response, in ms; null where two taps saw them.

    The arguments are names of columns: both times, and ``clocks`` of the same row.
    """
    one_clock = f"{clocks}.request_tap IS NOT DISTINCT FROM {clocks}.response_tap"
    return f"CASE WHEN {one_clock} THEN (unix_micros({responded}) - unix_micros({requested})) / 1000 END"
