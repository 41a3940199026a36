"""Offsets of the members of a transfer buffer, compared with those printed in the fact sheet (section 3.5)."""

import pytest

from stubs.helpers import BY_METHOD, column, single

# Pointers, with their offsets behind the union in NDR and NDR64.
OFFSETS = [
    ("pClass", 0, 0),
    ("ppMessageID", 4, 8),
    ("ppCorrelationID", 8, 16),
    ("pSentTime", 12, 24),
    ("pArrivedTime", 16, 32),
    ("pPriority", 20, 40),
    ("pDelivery", 24, 48),
    ("pAcknowledge", 28, 56),
    ("pAuditing", 32, 64),
    ("pApplicationTag", 36, 72),
    ("ppBody", 40, 80),
    ("pBodySize", 52, 96),
    ("ppTitle", 56, 104),
    ("pulTitleBufferSizeInWCHARs", 64, 120),
    ("pulRelativeTimeToQueue", 72, 136),
    ("pulRelativeTimeToLive", 80, 152),
    ("pTrace", 84, 160),
    ("pulSenderIDType", 88, 168),
    ("ppSenderID", 92, 176),
    ("pulSenderIDLenProp", 96, 184),
    ("pulPrivLevel", 100, 192),
    ("pAuthenticated", 108, 208),
    ("pulHashAlg", 112, 216),
    ("pulEncryptAlg", 116, 224),
    ("ppSenderCert", 120, 232),
    ("pulSenderCertLenProp", 128, 248),
    ("ppwcsProvName", 132, 256),
    ("pulAuthProvNameLenProp", 140, 272),
    ("pulProvType", 144, 280),
    ("ppSymmKeys", 152, 296),
    ("pulSymmKeysSizeProp", 160, 312),
    ("ppSignature", 168, 328),
    ("pulSignatureSizeProp", 176, 344),
    ("ppSrcQMID", 180, 352),
    ("pUow", 184, 360),
    ("ppMsgExtension", 188, 368),
    ("pMsgExtensionSize", 196, 384),
    ("ppConnectorType", 200, 392),
    ("pulBodyType", 204, 400),
    ("pulVersion", 208, 408),
]


@pytest.mark.parametrize("ndr64", [False, True])
@pytest.mark.parametrize(("kind", "after", "after64"), [(0, 16, 32), (1, 72, 128), (2, 20, 32)])
@pytest.mark.parametrize(("name", "offset", "offset64"), OFFSETS)
def test_a_pointer_stands_where_the_sheet_says(name, offset, offset64, kind, after, after64, ndr64):
    """One referent in a buffer of zeros without a pointee: the error names the member at that offset."""
    size = after64 + 416 if ndr64 else after + 212
    stub = bytearray(size)
    stub[0] = stub[8 if ndr64 else 4] = kind
    stub[after64 + offset64 if ndr64 else after + offset] = 1
    method = BY_METHOD["R_QMCreateRemoteCursor"]
    (row,) = column(method, "request", [bytes(stub)], ndr64=ndr64)
    assert row == ({}, [("truncated", f"*ptb1.{name}", size)])
    assert single(method, "request", bytes(stub), ndr64=ndr64) == row
