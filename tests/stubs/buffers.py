"""CACTransferBufferV1 and V2 ([MS-MQMP] 2.2.3.2, 2.2.3.3) as codecs of the test peer, independent of the decoders."""

from peer.idl import QUEUE_FORMAT
from peer.ndr import (
    GUID,
    U8,
    U16,
    U32,
    UOW,
    Boxed,
    Codec,
    Counted,
    CountedOctets,
    Octets,
    Pointer,
    Struct,
    VaryingOctets,
)


class VaryingUnits(VaryingOctets):
    """A conformant varying array of wchar_t; the values in these tests are little-endian octets."""

    unit = 2

    def write(self, w, value):
        swapped = b"".join(value[at : at + 2][::-1] for at in range(0, len(value), 2))
        super().write(w, value if w.order == "<" else swapped)


class PartlySent(Codec):
    """A message body: the buffer has room for more octets than are sent."""

    def alignment(self, ndr64):
        return 8 if ndr64 else 4

    def write(self, w, value):
        room, sent = value
        for number in (room, 0, len(sent)):
            w.count(number)
        w.data += sent


class Aligned(Octets):
    """An OBJECTID as octets: a structure of a GUID and a number, aligned to 4."""

    def write(self, w, value):
        w.align(4)
        super().write(w, value)


def twice(codec):
    """Return the codec of a pointer to a pointer."""
    return Pointer(Boxed(Pointer(codec)))


OBJECT_ID = Aligned(20)
CURSOR = Struct(("hCursor", U32), ("srv_hACQueue", U32), ("cli_pQMQueue", U32))
SEND = Struct(("pAdminQueueFormat", Pointer(QUEUE_FORMAT)), ("pResponseQueueFormat", Pointer(QUEUE_FORMAT)))
RECEIVE = Struct(
    ("RequestTimeout", U32), ("Action", U32), ("Asynchronous", U32), ("Cursor", U32),
    *(
        member
        for kind in ("Response", "Admin", "Dest", "Ordering")
        for member in (
            (f"ul{kind}FormatNameLen", U32), (f"pp{kind}FormatName", twice(Counted(U16))),
            (f"pul{kind}FormatNameLenProp", Pointer(U32)),
        )
    ),
)  # fmt: skip


class Arm(Codec):
    """uTransferType, the tag, and one union arm; 8-aligned in NDR64, because some arms hold pointers (N8)."""

    arms = {0: SEND, 1: RECEIVE, 2: CURSOR}  # noqa: RUF012

    def alignment(self, ndr64):
        return 8 if ndr64 else 4

    def write(self, w, value):
        kind, members = value
        w.integer(kind, 4)
        w.align(self.alignment(w.ndr64))
        w.integer(kind, 4)
        w.align(self.alignment(w.ndr64))
        self.arms[kind].write(w, members)
        w.align(self.alignment(w.ndr64))


_V1 = (
    ("arm", Arm()),
    ("pClass", Pointer(U16)), ("ppMessageID", twice(OBJECT_ID)), ("ppCorrelationID", twice(VaryingOctets())),
    ("pSentTime", Pointer(U32)), ("pArrivedTime", Pointer(U32)), ("pPriority", Pointer(U8)), ("pDelivery", Pointer(U8)),
    ("pAcknowledge", Pointer(U8)), ("pAuditing", Pointer(U8)), ("pApplicationTag", Pointer(U32)),
    ("ppBody", twice(PartlySent())), ("ulBodyBufferSizeInBytes", U32), ("ulAllocBodyBufferInBytes", U32),
    ("pBodySize", Pointer(U32)), ("ppTitle", twice(VaryingUnits())), ("ulTitleBufferSizeInWCHARs", U32),
    ("pulTitleBufferSizeInWCHARs", Pointer(U32)), ("ulAbsoluteTimeToQueue", U32),
    ("pulRelativeTimeToQueue", Pointer(U32)), ("ulRelativeTimeToLive", U32), ("pulRelativeTimeToLive", Pointer(U32)),
    ("pTrace", Pointer(U8)), ("pulSenderIDType", Pointer(U32)), ("ppSenderID", twice(CountedOctets())),
    ("pulSenderIDLenProp", Pointer(U32)), ("pulPrivLevel", Pointer(U32)), ("ulAuthLevel", U32),
    ("pAuthenticated", Pointer(U8)), ("pulHashAlg", Pointer(U32)), ("pulEncryptAlg", Pointer(U32)),
    ("ppSenderCert", twice(CountedOctets())), ("ulSenderCertLen", U32), ("pulSenderCertLenProp", Pointer(U32)),
    ("ppwcsProvName", twice(Counted(U16))), ("ulProvNameLen", U32), ("pulAuthProvNameLenProp", Pointer(U32)),
    ("pulProvType", Pointer(U32)), ("fDefaultProvider", U32), ("ppSymmKeys", twice(CountedOctets())),
    ("ulSymmKeysSize", U32), ("pulSymmKeysSizeProp", Pointer(U32)), ("bEncrypted", U8), ("bAuthenticated", U8),
    ("uSenderIDLen", U16), ("ppSignature", twice(CountedOctets())), ("ulSignatureSize", U32),
    ("pulSignatureSizeProp", Pointer(U32)), ("ppSrcQMID", twice(GUID)), ("pUow", Pointer(UOW)),
    ("ppMsgExtension", twice(VaryingOctets())), ("ulMsgExtensionBufferInBytes", U32),
    ("pMsgExtensionSize", Pointer(U32)), ("ppConnectorType", twice(GUID)), ("pulBodyType", Pointer(U32)),
    ("pulVersion", Pointer(U32)),
)  # fmt: skip
V1 = Struct(*_V1)
V2 = Struct(("old", V1), ("pbFirstInXact", Pointer(U8)), ("pbLastInXact", Pointer(U8)), ("ppXactID", twice(OBJECT_ID)))
_SIZED = {  # member: what counts it
    "ppSenderID": "uSenderIDLen", "ppSenderCert": "ulSenderCertLen", "ppwcsProvName": "ulProvNameLen",
    "ppSymmKeys": "ulSymmKeysSize", "ppSignature": "ulSignatureSize", "ppMsgExtension": "ulMsgExtensionBufferInBytes",
    "ppTitle": "ulTitleBufferSizeInWCHARs",
}  # fmt: skip


def empty(kind=0, **arm):
    """Return a V1 with NULL and 0 in all members outside its arm."""
    values = {name: None if isinstance(codec, Pointer) else 0 for name, codec in _V1}
    members = {name: None if isinstance(codec, Pointer) else 0 for name, codec in Arm.arms[kind].members}
    values["arm"] = (kind, members | arm)
    return values


def filled(values, octets, **pointees):
    """Return ``values`` with pointees; the counts of arrays are set, of NULL arrays to ``octets``."""
    out = values | pointees
    for name, size in _SIZED.items():
        if name in pointees:
            unit = 2 if name == "ppTitle" else 1
            out[size] = len(pointees[name][0]) // unit if pointees[name][0] is not None else octets
    return out
