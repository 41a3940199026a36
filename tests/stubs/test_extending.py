"""The example of docs/extending.md, taken from the page: a method that is declared is decoded by both readers."""

import re
import struct

import pytest

from stubs import helpers
from udfs.stubs.method import HRESULT, UNUSED, Kind, Method, Param

HANDLE = bytes(range(20))


@pytest.fixture(scope="module")
def method(project):
    """What the page says to write."""
    text = (project / "docs" / "extending.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {"Method": Method, "Param": Param, "Kind": Kind, "UNUSED": UNUSED, "HRESULT": HRESULT}
    made = eval(re.sub(r"\s*\n\s*", " ", code.strip()), names)
    assert isinstance(made, Method)
    return made


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
