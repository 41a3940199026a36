"""The functions of Spark columns: on the demo's lake they give what silver has, and on bad input rows with errors."""

from __future__ import annotations

import inspect
import re
import textwrap

import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from comqc.helpers import chdr, message, method, secd
from schemas.comqc import COMQC_CALLS
from schemas.queue_snapshots import PROPERTIES
from udfs import spark_functions as functions
from udfs.properties.management_answers import PROPERTY_COLUMNS
from udfs.stubs.call_decoder import _RESPONSE_FIRST as RESPONSE_FIRST

pytestmark = pytest.mark.spark

BODY = message(chdr(), secd(), method(b"x", iid=bytes(16), opnum=3))
IN_CLEAR = "NOT sealed OR opened_by IS NOT NULL"


@pytest.fixture
def table(spark, demo_lake):
    return lambda name: spark.read.format("delta").load(f"{demo_lake}/{name.replace('.', '/')}")


def stub(direction, order):
    """The parameters of a call's request or response."""
    where = ("interface_name", "opnum", F.lit(direction), "transfer_syntax", order)
    return functions.decode_stub(f"{direction}_stub", *where)


@pytest.fixture
def decoded(table):
    """Calls in the clear with the parameters of both stubs; of the whole captures only."""
    calls = table("bronze.rpc_calls").where(f"({IN_CLEAR}) AND outcome <> 'damaged'")
    orders = F.coalesce("response_byte_order", "byte_order")
    return calls.select("*", stub("request", "byte_order").alias("asked"), stub("response", orders).alias("answer"))


@pytest.mark.parametrize("name", ["remote_read_calls", "client_calls", "management_calls"])
def test_parameters_are_those_of_silver(decoded, table, name):
    """Silver has one value for both stubs, and nothing that a failed call returned."""
    silver = table(f"silver.{name}")
    columns = [each for each in silver.columns if each in functions.PARAMETERS_SCHEMA.names]
    columns = [each for each in columns if each not in ("method", "packet", "errors", "arrived_at", "packet_bytes")]
    columns = [each for each in columns if not each.startswith("section_") and each != "action"]
    rows = decoded.join(
        silver.select("call_key", *(F.col(each).alias(f"silver_{each}") for each in columns)), "call_key"
    )
    sides = {each: ("answer", "asked") if each in RESPONSE_FIRST else ("asked", "answer") for each in columns}
    wrong = {
        each: F.count_if(~F.col(f"silver_{each}").eqNullSafe(F.coalesce(*(F.col(f"{side}.{each}") for side in both))))
        for each, both in sides.items()
        if each not in ("queue", "hresult_name")  # of qmcomm's answers
    }
    found = rows.agg(F.count("*").alias("rows"), *(count.alias(each) for each, count in wrong.items())).first().asDict()
    assert found.pop("rows") > 25
    assert {each: count for each, count in found.items() if count} == {}


def test_messages_are_those_of_silver(decoded, table):
    sections = [f"answer.{each}" for each in functions.SECTION_TYPES]
    packets = decoded.where("answer.packet IS NOT NULL AND answer.hresult = 0 OR answer.packet_bytes > 0")
    found = packets.select(
        "call_key", functions.decode_message("answer.packet", "interface_name", *sections).alias("m")
    )
    silver = table("silver.messages").where("call_key IS NOT NULL")
    not_kept = ("body", "application_headers", "exception_message")  # by default
    columns = [each for each in silver.columns if each in found.schema["m"].dataType.names and each not in not_kept]
    assert len(columns) > 45
    expected = silver.select("call_key", *(F.col(each).cast("string") for each in columns))
    made = found.select("call_key", *(F.col(f"m.{each}").cast("string") for each in columns))
    assert sorted(map(tuple, made.collect()), key=str) == sorted(map(tuple, expected.collect()), key=str)
    body, declared = found.where("m.body_complete").select("m.body", "m.body_bytes").first()
    assert len(body) == declared


def test_answers_are_those_of_silver(table):
    calls = table("bronze.rpc_calls").where("interface_name = 'qmmgmt' AND opnum = 0 AND outcome = 'ok'")
    answer = functions.decode_management_answer(
        "request_stub", "response_stub", "transfer_syntax", "byte_order", "response_byte_order"
    )
    columns = [each for each in PROPERTIES.names if each in PROPERTY_COLUMNS]
    made = calls.select("call_key", answer.alias("answer")).selectExpr("call_key", "inline(answer.properties)")
    expected = (
        table("silver.properties").where("call_key IS NOT NULL AND hresult IS NOT NULL").select("call_key", *columns)
    )
    assert sorted(map(str, made.collect())) == sorted(map(str, expected.collect()))
    assert len(columns) == 11
    no_request = F.lit(None).cast("binary")
    alone = functions.decode_management_answer(no_request, "response_stub", "transfer_syntax", "byte_order")
    first = calls.select(alone.alias("answer")).where("answer.hresult = 0").first().answer
    assert {prop.property_id for prop in first.properties} == {None}
    assert "value" in {prop.state for prop in first.properties}


def test_a_comqc_body_gives_its_calls(spark):
    frame = spark.createDataFrame([(BODY,), (b"text of another application",), (None,)], "body binary")
    whole, other, none = (
        row.found for row in frame.select(functions.decode_comqc_body("body").alias("found")).collect()
    )
    assert [(call.opnum, bytes(call.marshaled)) for call in whole.calls] == [(3, b"x")]
    assert set(whole.calls[0].asDict()) <= set(COMQC_CALLS.names)
    assert (whole.comqc_rejected, whole.errors) == (None, [])
    assert (other.calls, other.rejected_offset) == ([], 0)
    assert other.comqc_rejected
    assert (none.calls, none.comqc_rejected, none.errors) == (None, None, [])
    cut = spark.createDataFrame([(BODY[:-4], len(BODY))], "body binary, body_bytes bigint")
    (row,) = cut.select(functions.decode_comqc_body("body", "body_bytes").alias("found")).collect()
    assert (row.found.comqc_rejected, row.found.errors[0].code) == (None, "truncated")


def test_what_cannot_be_decoded_says_so(spark):
    known = ("qmcomm", 2, "request", "NDR", "little")
    rows = [
        (b"x", *(value if place != wrong else other for place, value in enumerate(known)))
        for wrong, other in ((0, "winreg"), (0, None), (1, None), (1, 999), (2, "both"), (3, "other"), (4, None))
    ]
    rows += [(None, "winreg", None, None, None, None), (b"\x01", *known)]
    names = "interface_name string, opnum int, direction string, transfer_syntax string, byte_order string"
    frame = spark.createDataFrame(rows, f"stub binary, {names}")
    read = functions.decode_stub("stub", "interface_name", "opnum", "direction", "transfer_syntax", "byte_order")
    found = [row.errors for row in frame.select(read["errors"].alias("errors")).collect()]
    assert [(error.code, error.field) for errors in found[:-2] for error in errors] == [
        ("unsupported", "interface_name"), ("unsupported", "interface_name"), ("unsupported", "opnum"),
        ("unsupported", "request.opnum"), ("unsupported", "direction"), ("unsupported", "request.transfer_syntax"),
        ("unsupported", "byte_order"),
    ]  # fmt: skip
    assert found[-2] == []
    assert found[-1][0].code == "truncated"
    packets = spark.createDataFrame(
        [(b"x", "RemoteRead"), (b"x", "SMTP"), (b"x", None), (None, None)], "p binary, s string"
    )
    found = [
        row.errors for row in packets.select(functions.decode_message("p", "s")["errors"].alias("errors")).collect()
    ]
    assert [[(error.code, error.field) for error in errors] for errors in found[1:]] == [
        [("unsupported", "seen_in")], [("unsupported", "seen_in")], []
    ]  # fmt: skip
    assert found[0][0].code == "truncated"


def test_types_are_those_of_the_tables():
    """What the decoders make is what the tables declare, column by column."""
    for name, made in (("decode_stub", functions.PARAMETERS_SCHEMA), ("decode_comqc_body", functions.BODY_SCHEMA)):
        assert functions._struct_type(made) == functions._FUNCTIONS[name][1]
    (calls,) = (field for field in functions.BODY_SCHEMA if field.name == "calls")
    declared = {field.name: field.dataType for field in COMQC_CALLS.struct()}
    assert {each.name: declared[each.name] for each in from_arrow_type(calls.type).elementType} == {
        each.name: each.dataType for each in from_arrow_type(calls.type).elementType
    }


def test_sql_has_them_by_the_same_names(spark):
    functions.register_functions(spark)
    row = spark.sql(
        "SELECT normalize_queue_name('DIRECT=OS:H\\\\Q') AS queue, decode_message(X'00', 'qm2qm').errors AS e"
    ).first()
    assert (row.queue, row.e[0].code) == ("h\\q", "truncated")
    own = inspect.getmembers(functions, lambda each: getattr(each, "__module__", "") == functions.__name__)
    public = {name for name, _ in own if not name.startswith("_")}
    assert public == {*functions._FUNCTIONS, "register_functions"}


@pytest.mark.parametrize("name", sorted(functions._FUNCTIONS))
def test_the_example_of_a_function(table, name):
    text = inspect.getdoc(getattr(functions, name))
    given, code = re.search(r"Example, with (.*?)::\n\n(.*)", text, re.DOTALL).groups()
    frame, source = re.findall(r"``([^`]+)``", given)
    names = {**vars(functions), "lit": F.lit, frame: table(source)}
    *statements, last = re.split(r"\n(?=[a-z])", textwrap.dedent(code).strip())
    exec("\n".join(statements), names)
    rows = eval(last, names).collect()
    assert len(rows) > 10 or name == "decode_comqc_body"  # the demo has none
