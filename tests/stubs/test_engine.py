"""Every method, both directions, NDR and NDR64: stubs from impacket and from the test peer decode alike.

Values are generated from the peer's declarations: NULL and other pointers, empty and long strings and arrays, every
arm of unions. The two stubs differ only in referents and padding.
"""

from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from example_counts import examples
from peer import idl, ndr
from peer.idl import QueueFormat, Variant
from peer.methods import BY_NAME, Method
from peer.ndr import CTX, U32
from stubs import buffers, engine
from stubs.helpers import BY_METHOD, column, single
from stubs.test_other_interfaces import _buffers
from udfs.stubs import method_registry

_CURSOR = (("hCursor", U32), ("srv_hACQueue", U32), ("cli_pQMQueue", U32))


def _method(name, ins=(), outs=()):
    return Method(BY_NAME["R_QMGetRemoteQueueName"].interface, BY_METHOD[name].opnum, name, ins, outs, True)


# Those that the peer does not serve, and the transfer buffers that it only sends empty.
MORE = [
    _method("R_QMCreateRemoteCursor", (("ptb1", buffers.V1), ("hQueue", U32)), (("phCursor", U32),)),
    _method("rpc_ACCloseCursor", (("hQueue", CTX), ("hCursor", U32))),
    _method("rpc_ACSetCursorProperties", (("hProxy", CTX), ("hCursor", U32), ("hRemoteCursor", U32))),
    _method("rpc_ACPurgeQueue", (("hQueue", CTX),)),
    _method("rpc_ACReceiveMessageEx", (("hQMContext", U32), ("ptb", buffers.V2)), (("ptb", buffers.V2),)),
    _method("rpc_ACCreateCursorEx", (("hQueue", CTX), *_CURSOR), _CURSOR),
]
DECLARED = {name: each for name, each in BY_NAME.items() if name in BY_METHOD} | {each.name: each for each in MORE}
ONLY_HRESULT = {
    method.name
    for by_opnum in method_registry.CLIENT_METHODS.values()
    for method in by_opnum.values()
    if [param.ndr_type.value for param in method.request] == ["rest"]
}

GUIDS = st.uuids()
TEXTS = st.one_of(st.just(""), st.text(st.characters(codec="utf-16", exclude_characters="\0"), max_size=20),
                  st.just("x" * 700))  # fmt: skip
OCTETS = st.one_of(st.just(b""), st.binary(max_size=9), st.just(bytes(range(256)) * 9))
_FORMATS = {
    idl.PUBLIC: GUIDS, idl.MACHINE: GUIDS, idl.CONNECTOR: GUIDS, idl.DIRECT: st.none() | TEXTS,
    idl.SUBQUEUE: st.none() | TEXTS, idl.UNKNOWN: st.none(),
    idl.PRIVATE: st.fixed_dictionaries({"lineage": GUIDS, "uniquifier": st.integers(0, 2**32 - 1)}),
    idl.DL: st.fixed_dictionaries({"guid": GUIDS, "domain": st.none() | TEXTS}),
    idl.MULTICAST: st.fixed_dictionaries({"address": st.integers(0, 2**32 - 1), "port": st.integers(0, 65535)}),
}  # fmt: skip
FORMATS = st.sampled_from(sorted(_FORMATS)).flatmap(
    lambda kind: st.builds(QueueFormat, st.just(kind), _FORMATS[kind], st.sampled_from([0, 0x81, 0x82]))
)


def _arm(codec, depth):
    return st.none() if codec is None else drawn(codec, depth)


def _variants(depth):
    kinds = [vt for vt in idl._VARIANT_ARMS if depth < 2 or vt != 0x100C]
    return st.sampled_from(kinds).flatmap(
        lambda vt: st.builds(Variant, st.just(vt), _arm(idl.variant_arm(vt), depth + 1))
    )


def drawn(codec, depth=0):
    """Return a strategy for the values of a codec."""
    match codec:
        case ndr.Ranged():
            return st.integers(codec.low, codec.high)
        case ndr.Integer():
            return st.integers(0, 2 ** (8 * codec.size) - 1)
        case ndr.Enum():
            return st.integers(0, 4)
        case buffers.Aligned() | ndr.Octets():
            return st.binary(min_size=codec.size, max_size=codec.size)
        case ndr.Guid():
            return GUIDS
        case ndr.ContextHandle():
            return st.just(ndr.NULL_HANDLE) | st.binary(min_size=20, max_size=20)
        case idl.QueueFormatCodec():
            return FORMATS
        case idl.VariantCodec():
            return _variants(depth)
        case idl.MgmtObjectCodec():
            return st.fixed_dictionaries({"type": st.sampled_from([1, 2, 2, 3]), "queue": st.none() | FORMATS})
        case idl._Blob():
            return drawn(codec.pointer.target, depth)
        case ndr.Text():
            return TEXTS
        case ndr.CountedOctets() | ndr.VaryingOctets():
            return OCTETS
        case ndr.Counted():
            return st.lists(drawn(codec.element, depth), max_size=4)
        case ndr.Pointer():
            return st.none() | drawn(codec.target, depth)
        case ndr.Boxed():
            return drawn(codec.inner, depth).map(lambda value: [value])
        case ndr.Struct():
            return st.fixed_dictionaries({name: drawn(each, depth) for name, each in codec.members})
    return st.none()


def consistent(values):
    """Set the counting members of arrays to the lengths of the arrays."""
    for name in ("lpRemoteReadDesc2",):
        if name in values and values[name]["pRemoteReadDesc"]:
            consistent({"lpRemoteReadDesc": values[name]["pRemoteReadDesc"]})
    if desc := values.get("lpRemoteReadDesc"):
        desc["dwSize"] = len(desc["lpBuffer"] or b"")
    if "ppPacketSections" in values:
        sections = values["ppPacketSections"]
        values["pdwNumberOfSections"] = len(sections or [])
        for each in sections or []:
            each["SectionSize"] = len(each["pSectionBuffer"]) if each["pSectionBuffer"] is not None else 0
    if "pbPropagationToken" in values:
        values["cbPropagationToken"] = len(values["pbPropagationToken"])
    if "cp" in values:
        values["aProp"] = [7] * len(values["apVar"])
        values["cp"] = len(values["apVar"])
    return values


def _parameters(method, direction):
    fields = method.ins if direction == "request" else method.outs
    return (*fields, ("return", U32)) if direction == "response" and method.returns else fields


@st.composite
def arguments(draw, fields):
    values = {}
    for name, codec in fields:
        if codec in (buffers.V1, buffers.V2):
            old = draw(_buffers())[0]
            values[name] = old if codec is buffers.V1 else {
                "old": old, "pbFirstInXact": draw(st.none() | st.just(1)), "pbLastInXact": None,
                "ppXactID": draw(st.sampled_from([None, [None], [bytes(20)]])),
            }  # fmt: skip
        else:
            values[name] = draw(drawn(codec))
    return consistent(values)


def test_every_method_that_is_decoded_is_declared():
    assert set(DECLARED) == set(BY_METHOD) - ONLY_HRESULT
    assert sum(BY_METHOD[name] in method_registry.ALL_METHODS["qm2qm"].values() for name in DECLARED) == 11
    assert sum(BY_METHOD[name] in method_registry.ALL_METHODS["RemoteRead"].values() for name in DECLARED) == 15
    numbers = {
        i: {n for n, m in method_registry.ALL_METHODS[i].items() if m.name in DECLARED}
        for i in ("qmmgmt", "qmcomm", "qmcomm2")
    }
    assert numbers == {"qmmgmt": {0, 1}, "qmcomm": {1, 2, 3, 4, 19, 20, 22, 23, 27, 31}, "qmcomm2": {2, 3}}


@pytest.mark.parametrize("ndr64", [False, True], ids=["NDR", "NDR64"])
@pytest.mark.parametrize("direction", ["request", "response"])
@pytest.mark.parametrize("name", sorted(DECLARED))
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_impackets_octets_decode_as_the_peers(name, direction, ndr64, data):
    method = DECLARED[name]
    fields = _parameters(method, direction)
    values = data.draw(arguments(fields))
    if direction == "request":
        ours = method.request(values, ndr64=ndr64, order="<")
    else:
        ours = method.response(values, ndr64=ndr64, order="<")
    theirs = engine.stub(fields, values, ndr64=ndr64)
    assert len(theirs) == len(ours)
    rows = column(BY_METHOD[name], direction, [ours, theirs], ndr64=ndr64)
    assert rows[0][1] == []
    assert rows[1] == rows[0]
    assert single(BY_METHOD[name], direction, theirs, ndr64=ndr64) == rows[0]


def test_the_values_reach_their_columns():
    """One stub with known expected values, in case all decoders are wrong in the same way."""
    queue = QueueFormat(2, {"lineage": UUID(int=5), "uniquifier": 0xAB}, 0x81)
    values = {"pObjectFormat": {"type": 2, "queue": queue}, "lpwszAction": "PAUSE"}
    name = f"{UUID(int=5)}\\000000ab;"
    for ndr64 in (False, True):
        stub = engine.stub(DECLARED["R_QMMgmtAction"].ins, values, ndr64=ndr64)
        assert column(BY_METHOD["R_QMMgmtAction"], "request", [stub], ndr64=ndr64) == [({
            "object_type": "queue", "queue_format_type": 2, "action_text": "PAUSE",
            "queue_format_name": f"PRIVATE={name}JOURNAL", "queue": f"{name}journal",
        }, [])]  # fmt: skip
