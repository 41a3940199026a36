"""The method declared as an example in docs/internals/decoders.md is decoded by both readers."""

import re
import struct

import pytest

from stubs import helpers
from udfs.stubs.idl import HRESULT_RETURN, NOT_STORED, Method, NdrType, Parameter

HANDLE = bytes(range(20))


@pytest.fixture(scope="module")
def method(project):
    """The method declared in the example of the page."""
    page = (project / "docs" / "internals" / "decoders.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page.partition("\n## Adding to the decoders\n")[2], re.DOTALL)
    names = {each.__name__: each for each in (Method, NdrType, Parameter)}
    names |= {"NOT_KEPT": NOT_STORED, "HRESULT_RETURN": HRESULT_RETURN}
    declared = eval(re.sub(r"\s*\n\s*", " ", code.strip()), names)
    assert isinstance(declared, Method)
    return declared


@pytest.mark.parametrize("ndr64", [False, True])
@pytest.mark.parametrize("big", [False, True])
def test_the_method_of_the_page_is_decoded(method, ndr64, big):
    order = ">" if big else "<"
    for direction, stub, name in (
        ("request", HANDLE, "context_handle"),
        ("response", HANDLE + struct.pack(order + "I", 0xC00E0003), "hresult"),
    ):
        column = helpers.column(method, direction, [stub, None, stub[:10]], ndr64=ndr64, big=big)
        for given, (values, errors) in zip([stub, None, stub[:10]], column, strict=True):
            if given is not None:
                assert (values, errors) == helpers.single(method, direction, given, ndr64=ndr64, big=big)
        values, errors = column[0]
        assert not errors
        assert values[name] == (0xC00E0003 if name == "hresult" else values[name])
        assert values[name] is not None
        assert column[2][1]  # cut short: an error, not an exception
