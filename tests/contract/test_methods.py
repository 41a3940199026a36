"""The methods that stubs are decoded for are those that the interfaces list, under the same names."""

import pytest

from udfs.rpc.interfaces import BY_NAME, MSMQ
from udfs.stubs.calls import METHODS


@pytest.mark.parametrize("interface", METHODS)
def test_decoded_methods_are_the_interfaces_own(interface):
    listed = BY_NAME[interface].methods
    assert {opnum: method.name for opnum, method in METHODS[interface].items()} == {
        opnum: name for opnum, name in enumerate(listed) if "NotUsedOnWire" not in name
    }


@pytest.mark.parametrize("interface", MSMQ, ids=lambda interface: interface.name)
def test_lengths_are_of_methods_that_there_are(interface):
    assert [opnum for opnum in interface.lengths if opnum >= len(interface.methods)] == []
    assert [interface.methods[opnum] for opnum in interface.lengths if "NotUsed" in interface.methods[opnum]] == []
