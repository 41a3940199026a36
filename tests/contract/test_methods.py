"""The methods that stubs are decoded for are those that the interfaces list, under the same names."""

import pytest

from udfs.dcerpc.interfaces import BY_NAME, MSMQ
from udfs.stubs.method import HRESULT, Kind
from udfs.stubs.methods import ALL

# The methods of the client's interfaces whose parameters are read; of the others only the HRESULT.
DECLARED = {"qmcomm": {1, 2, 3, 4, 19, 20, 22, 23, 27, 31}, "qmcomm2": {2, 3}}


def test_every_interface_is_decoded():
    assert {*ALL} == {interface.name for interface in MSMQ}


@pytest.mark.parametrize("interface", ALL)
def test_decoded_methods_are_the_interfaces_own(interface):
    listed = BY_NAME[interface].methods
    assert {opnum: method.name for opnum, method in ALL[interface].items()} == {
        opnum: name for opnum, name in enumerate(listed) if "NotUsed" not in name
    }
    assert [opnum for opnum, method in ALL[interface].items() if method.opnum != opnum] == []


@pytest.mark.parametrize("interface", ALL)
def test_methods_are_read_whole_but_those_that_say_only_how_they_ended(interface):
    rest = {opnum for opnum, method in ALL[interface].items() if any(p.kind is Kind.REST for p in method.request)}
    assert rest == {*ALL[interface]} - DECLARED.get(interface, {*ALL[interface]})
    for opnum in rest:
        assert [param.kind for param in ALL[interface][opnum].response] == [Kind.REST, Kind.U32]
        assert ALL[interface][opnum].response[-1] is HRESULT


@pytest.mark.parametrize("interface", MSMQ, ids=lambda interface: interface.name)
def test_lengths_are_of_methods_that_there_are(interface):
    assert [opnum for opnum in interface.lengths if opnum >= len(interface.methods)] == []
    assert [interface.methods[opnum] for opnum in interface.lengths if "NotUsed" in interface.methods[opnum]] == []
