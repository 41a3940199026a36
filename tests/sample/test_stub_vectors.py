"""The peer's stubs against the vectors of the fact sheet (rpc-interfaces.md section 3)."""

import json
from pathlib import Path

import pytest

from peer.methods import BY_NAME

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())


def _id(vector):
    return "-".join(str(vector[key]) for key in ("method", "direction", "syntax", "note"))


@pytest.mark.parametrize("vector", VECTORS, ids=_id)
def test_vector_is_read_whole_and_written_back_octet_for_octet(vector):
    method = BY_NAME[vector["method"]]
    assert method.opnum == vector["opnum"]
    stub = bytes.fromhex(vector["hex"])
    ndr64 = vector["syntax"] == "NDR64"
    parse, write = (
        (method.parse_request, method.request)
        if vector["direction"] == "request"
        else (method.parse_response, method.response)
    )
    values = parse(stub, ndr64=ndr64)
    assert write(values, ndr64=ndr64) == stub
    # The same values survive big endian, where the fact sheet prints no octets.
    big = write(values, ndr64=ndr64, order=">")
    assert len(big) == len(stub)
    assert parse(big, ndr64=ndr64, order=">") == values
