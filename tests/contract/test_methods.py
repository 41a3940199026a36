"""The methods that stubs are decoded for are those that the interfaces list, under the same names."""

import pytest

from udfs.dcerpc.interfaces import INTERFACES_BY_NAME, MSMQ_INTERFACES
from udfs.stubs.idl import HRESULT_RETURN, NdrType
from udfs.stubs.method_registry import ALL_METHODS

# The methods of the client's interfaces whose parameters are read; of the others only the HRESULT.
DECLARED = {"qmcomm": {1, 2, 3, 4, 19, 20, 22, 23, 27, 31}, "qmcomm2": {2, 3}}


def test_every_interface_is_decoded():
    assert {*ALL_METHODS} == {interface.name for interface in MSMQ_INTERFACES}


@pytest.mark.parametrize("interface", ALL_METHODS)
def test_decoded_methods_are_the_interfaces_own(interface):
    listed = INTERFACES_BY_NAME[interface].methods
    assert {opnum: method.name for opnum, method in ALL_METHODS[interface].items()} == {
        opnum: name for opnum, name in enumerate(listed) if "NotUsed" not in name
    }
    assert [opnum for opnum, method in ALL_METHODS[interface].items() if method.opnum != opnum] == []


@pytest.mark.parametrize("interface", ALL_METHODS)
def test_methods_are_read_whole_but_those_that_say_only_how_they_ended(interface):
    rest = {
        opnum
        for opnum, method in ALL_METHODS[interface].items()
        if any(p.ndr_type is NdrType.REST for p in method.request)
    }
    assert rest == {*ALL_METHODS[interface]} - DECLARED.get(interface, {*ALL_METHODS[interface]})
    for opnum in rest:
        assert [param.ndr_type for param in ALL_METHODS[interface][opnum].response] == [NdrType.REST, NdrType.U32]
        assert ALL_METHODS[interface][opnum].response[-1] is HRESULT_RETURN


@pytest.mark.parametrize("interface", MSMQ_INTERFACES, ids=lambda interface: interface.name)
def test_lengths_are_of_methods_that_there_are(interface):
    assert [opnum for opnum in interface.lengths if opnum >= len(interface.methods)] == []
    assert [interface.methods[opnum] for opnum in interface.lengths if "NotUsed" in interface.methods[opnum]] == []
