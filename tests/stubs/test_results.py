"""Results of calls: one table of names, one rule of success, in Python and in SQL."""

import re

import pyarrow as pa
import pytest

from engines import shared_sql
from udfs.call_results import QMMGMT_SUCCEEDED_SQL, call_succeeded, succeeded_sql
from udfs.codes import RESULT_NAMES, result_name

# Copied by hand: every result that the documents of Message Queuing name ([MS-MQQP], [MS-MQRR], [MS-MQMR]), and the
# statuses of faults that the fact sheet on RPC interfaces lists (1.8), with their names in [MS-ERREF] and [C706].
OF_THE_DOCUMENTS = {
    0x00000000: "MQ_OK",
    0x000006D9: "EPT_S_NOT_REGISTERED",
    0x400E03E9: "MQ_INFORMATION_REMOTE_CANCELED_BY_CLIENT",
    0xC0000008: "STATUS_INVALID_HANDLE",
    0xC000000D: "STATUS_INVALID_PARAMETER",
    0xC0000022: "STATUS_ACCESS_DENIED",
    0xC0000225: "STATUS_NOT_FOUND",
    0xC00E0001: "MQ_ERROR",
    0xC00E0003: "MQ_ERROR_QUEUE_NOT_FOUND",
    0xC00E0006: "MQ_ERROR_INVALID_PARAMETER",
    0xC00E0007: "MQ_ERROR_INVALID_HANDLE",
    0xC00E0008: "MQ_ERROR_OPERATION_CANCELLED",
    0xC00E001B: "MQ_ERROR_IO_TIMEOUT",
    0xC00E001D: "MQ_ERROR_MESSAGE_ALREADY_RECEIVED",
    0xC00E0025: "MQ_ERROR_ACCESS_DENIED",
    0xC00E0039: "MQ_ERROR_ILLEGAL_PROPID",
    0xC00E0050: "MQ_ERROR_TRANSACTION_USAGE",
    0xC00E0051: "MQ_ERROR_TRANSACTION_SEQUENCE",
    0xC00E0067: "MQ_ERROR_DEPEND_WKS_LICENSE_OVERFLOW",
    0xC00E0088: "MQ_ERROR_MESSAGE_NOT_FOUND",
    0xC00E009C: "MQ_ERROR_MESSAGE_LOCKED_UNDER_TRANSACTION",
    0x00000005: "ERROR_ACCESS_DENIED",
    0x000006F7: "RPC_X_BAD_STUB_DATA",
    0x1C00000D: "nca_s_fault_cancel",
    0x1C000012: "nca_s_fault_unspec",
    0x1C00001A: "nca_s_fault_context_mismatch",
    0x1C010002: "nca_s_op_rng_error",
    0x1C010003: "nca_s_unk_if",
    0x1C01000B: "nca_s_proto_error",
    0x1C010014: "nca_s_server_too_busy",
}
# Of the fact sheet on message packets, section 7, those of other documents.
OF_OTHER_DOCUMENTS = {
    0x400E03E8: "MQ_INFORMATION_REMOTE_OPERATION",
    0x80020004: "DISP_E_PARAMNOTFOUND",
    0x80020009: "DISP_E_EXCEPTION",
    0xC0000043: "STATUS_SHARING_VIOLATION",
    0xC000022D: "STATUS_RETRY",
    0xC00E0009: "MQ_ERROR_SHARING_VIOLATION",
    0xC00E0020: "MQ_ERROR_UNSUPPORTED_FORMATNAME_OPERATION",
    0xC00E0045: "MQ_ERROR_UNSUPPORTED_ACCESS_MODE",
    0xC00E004B: "MQ_ERROR_QUEUE_NOT_AVAILABLE",
    0xC00E0056: "MQ_ERROR_STALE_HANDLE",
    0xC00E005A: "MQ_ERROR_QUEUE_DELETED",
    0xC00E0064: "MQ_ERROR_ILLEGAL_OPERATION",
    0xC00E0069: "MQ_ERROR_REMOTE_MACHINE_NOT_AVAILABLE",
}
FULL_NAME = re.compile(r"(MQ|MQDS|STATUS|ERROR|EPT_S|RPC_S|RPC_X|DISP_E)_[A-Z0-9_]+|nca_s_[a-z_]+")


@pytest.mark.parametrize("code", OF_THE_DOCUMENTS | OF_OTHER_DOCUMENTS)
def test_every_code_that_the_documents_name_has_its_full_name(code):
    assert result_name(code) == (OF_THE_DOCUMENTS | OF_OTHER_DOCUMENTS)[code]


def test_names_are_whole_and_name_one_code():
    assert [name for name in RESULT_NAMES.values() if not FULL_NAME.fullmatch(name)] == []
    assert len(set(RESULT_NAMES.values())) == len(RESULT_NAMES)
    assert result_name(0xC00EABCD) == "0xC00EABCD"


INTERFACES = ("qm2qm", "RemoteRead", "qmmgmt", "qmcomm", "qmcomm2", "epm")
CODES = (*RESULT_NAMES, 1, 87, 0xFFFF, 0x400E00FF, 0x400E0100, 0x400E0000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


@pytest.mark.parametrize("interface", INTERFACES)
def test_what_succeeded_is_decided_by_the_interface(interface):
    """[MS-MQMR] 3: any value but 0 is a failure, Win32 codes too. [MS-MQMP] also has informational results."""
    succeeded = {code for code in CODES if call_succeeded(interface, code)}
    informs = {code for code in CODES if 0x400E0001 <= code <= 0x400E00FF} if interface.startswith("qmcomm") else set()
    assert succeeded == {0} | informs
    assert call_succeeded(interface, None) is None


@pytest.mark.parametrize(("port", "expected"), [(None, None), (0, False), (2105, True)])
def test_a_port_of_0_is_a_failure(port, expected):
    assert call_succeeded("RemoteRead", None, port) is expected


def test_sql_decides_as_python_does():
    cases = [(name, code, None) for name in INTERFACES for code in (*CODES, None)]
    cases += [("qm2qm", None, 0), ("qm2qm", None, 2105)]
    names, codes, ports = zip(*cases, strict=True)
    rows = pa.table({
        "name": pa.array(names), "code": pa.array(codes, pa.int64()), "port": pa.array(ports, pa.int64()),
    })  # fmt: skip
    constant = " ".join(f"WHEN name = '{name}' THEN {succeeded_sql(repr(name), 'code')}" for name in INTERFACES)
    sql = f"SELECT {succeeded_sql('name', 'code', 'port')} AS one, CASE {constant} END AS other FROM {{rows}}"
    found = shared_sql().answer(sql, {"rows": rows}).to_pylist()
    assert [row["one"] for row in found] == [call_succeeded(*case) for case in cases]
    assert [row["other"] for row in found] == [call_succeeded(name, code) for name, code, _ in cases]
    assert succeeded_sql("'qmmgmt'") == QMMGMT_SUCCEEDED_SQL
