"""The only UserMessage with published bytes, [MS-MQQB] 4.1.7, against the document's description of it.

The document prints the frame up to 1460 bytes, which is inside the body; the body is "a" in UTF-16 to its end.
"""

from messages.reading import one

FRAME = bytes.fromhex(
    """
    10 00 03 00 4C 49 4F 52 B0 08 00 00 00 46 05 00 D1 58 73 55 50 91 95 95 49 97 B6 E6 11 EA 26 C6
    00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 FF FF FF FF 4C 49 4F 52 EE 08 00 00 00 1C 28 00
    1A 00 4F 00 53 00 3A 00 61 00 30 00 34 00 62 00 6D 00 30 00 32 00 5C 00 71 00 00 00 01 00 1C 00
    00 00 00 00 00 00 00 00 00 00 00 00 01 05 00 00 00 00 00 05 15 00 00 00 AD 4A 9E BD 36 D9 FA 3D
    63 A6 56 DA E8 03 00 00 0F 0F 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
    08 00 00 00 00 00 00 00 D0 07 00 00 D0 07 00 00 00 00 00 00 04 80 00 00 01 68 00 00 00 00 00 00
    6D 00 71 00 73 00 65 00 6E 00 64 00 65 00 72 00 20 00 6C 00 61 00 62 00 65 00 6C 00 00 00
    """
)
WHOLE = 0x8B0  # PacketSize


def test_the_frame_as_printed_is_cut_in_its_body():
    values, errors = one((FRAME + b"a\0" * WHOLE)[:1460])
    assert errors == [("truncated", "MessagePropertiesHeader.MessageBody", len(FRAME))]
    assert values["message_id"] == "557358d1-9150-9595-4997-b6e611ea26c6\\2286"
    assert values["priority"] == 3
    assert values["destination_queue"] == "a04bm02\\q"
    assert values["sender_id"] == "S-1-5-21-3181267629-1039849782-3663111779-1000"
    assert values["label"] == "mqsender label"
    assert values["class_name"] == "MQMSG_CLASS_NORMAL"
    assert values["acknowledgement_requested"] == 15
    assert (values["body_type"], values["body_bytes"], values["body_bytes_seen"]) == (8, 2000, 1460 - len(FRAME))
    assert values["body_complete"] is False
    assert values["time_to_reach_queue_s"] == 345_600
    assert "time_to_be_received_s" not in values
    assert (values["hash_algorithm"], values["encryption_algorithm"]) == (0x8004, 0x6801)
    assert (values["authenticated"], values["signed"], values["encrypted"]) == (False, False, False)
    assert values["header_sizes"] == {
        "BaseHeader": 16, "UserHeader": 76, "SecurityHeader": 44, "MessagePropertiesHeader": 1460 - 136,
    }  # fmt: skip
    assert not {"admin_queue", "response_queue", "correlation_id", "extension", "transaction_number"} & values.keys()


def test_the_whole_frame_is_as_long_as_it_says():
    values, errors = one(FRAME + b"a\0" * 1000 + bytes(WHOLE - len(FRAME) - 2000))
    assert errors == []
    assert values["body_complete"] is True
    assert values["body"].decode("utf-16-le") == "a" * 1000
