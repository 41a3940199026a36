"""The decoder on a binary column in Spark, as in docs/internals/decoders.md."""

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from comqc.helpers import chdr, invoke, message, method, secd, string, value
from udfs.comqc.body_decoder import CALL_STRUCT, decode_bodies


@pytest.mark.spark
def test_the_documented_example_gives_a_row_for_each_call(spark):
    calls = F.arrow_udf(lambda bodies: decode_bodies(bodies).column("calls"), from_arrow_type(pa.list_(CALL_STRUCT)))
    body = message(chdr(), secd(), method(invoke([value(3, "i", 42), string("Hi")])), method(b"x", iid=None, opnum=9))
    frame = spark.createDataFrame([("a", body), ("b", b"nothing"), ("c", None)], "message_key string, body binary")
    rows = frame.select("message_key", F.explode(calls("body")).alias("call")).select("message_key", "call.*").collect()
    assert [(row.message_key, row.call_index, row.opnum) for row in rows] == [("a", 0, 6), ("a", 1, 9)]
    assert [tuple(argument) for argument in rows[0].arguments] == [(8, "VT_BSTR", "Hi"), (3, "VT_I4", "42")]
    assert rows[1].arguments is None
