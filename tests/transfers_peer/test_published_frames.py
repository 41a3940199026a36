"""The peer's encoder makes the published frames ([MS-MQQB] section 4) of the values that they show.

Where text and octets of the specification differ (``text_differs`` in the file), the octets count (D29).
"""

import uuid

import pytest

from peer.transfers import layouts as p
from published_frames import PUBLISHED

CLIENT = uuid.UUID("557358d1-9150-9595-4997-b6e611ea26c6")
SERVER = uuid.UUID("43cd8907-394c-8f11-4445-9078909ea0fc")


SID = bytes.fromhex("010500000000000515000000ad4a9ebd36d9fa3d63a656dae8030000")
MESSAGE = p.UserMessage(
    CLIENT, 2286, p.FormatName(direct="OS:a04bm02\\q"), "a".encode("utf-16-le") * 1000, sent=0x524F494C,
    time_to_reach=345_600, security=p.Security(SID, data_flag=False), label="mqsender label", acknowledge=0x0F,
    body_type=8, hash_algorithm=0x8004, encryption_algorithm=0x6801,
)  # fmt: skip
ANSWERED = p.EstablishConnection(
    uuid.UUID("1f742305-be5e-4177-bc77-c4dd7719e474"), uuid.UUID("3c3a6aeb-f567-4143-87d3-85cf4d68ceb4"), 0x1DDECA4E
)
MADE = {
    1: p.Ping(4, CLIENT, workstation=True, unused=0x7D01 >> 2).encode(),
    2: p.Ping(4, SERVER, workstation=True, unused=0xB295 >> 2).encode(),
    3: p.EstablishConnection(CLIENT, SERVER, 501_140_046).encode(p.BaseHeader(reserved=0xC0)),
    4: ANSWERED.encode(p.BaseHeader(reserved=0x5A)),
    5: p.ConnectionParameters(1496, 120_000, 64).encode(p.BaseHeader(reserved=0xC0)),
    6: p.ConnectionParameters(1496, 120_000, 64).encode(p.BaseHeader(reserved=0xC0)),
    7: MESSAGE.encode(),
    8: p.session_ack(p.SessionHeader(1, 0, 0, 0, 0, 64), p.BaseHeader(reserved=0xCD)),
}


@pytest.mark.parametrize("number", sorted(set(PUBLISHED) - {7}))
def test_a_published_frame_is_what_the_encoder_makes(number):
    assert MADE[number] == PUBLISHED[number]


def test_the_published_message_is_what_the_encoder_makes_up_to_its_cut():
    cut = PUBLISHED[7]
    assert len(cut) < len(MADE[7]) == 2224 == int.from_bytes(cut[8:12], "little")
    assert MADE[7][: len(cut)] == cut


def test_the_peer_reads_what_was_published():
    assert p.UserMessage.decode(MADE[7]) == MESSAGE
    assert p.EstablishConnection.decode(PUBLISHED[4]) == ANSWERED
    assert p.ConnectionParameters.decode(PUBLISHED[5]).window == 64
    assert p.Ping.decode(PUBLISHED[2]).cookie == 4
    assert p.SessionHeader.decode(PUBLISHED[8][20:]) == p.SessionHeader(1, 0, 0, 0, 0, 64)
