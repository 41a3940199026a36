"""The recordings of data/transfers and their accounts, for tests of the peer and of decoders."""

import json
from pathlib import Path

from pcapgen.exchanges import recorded
from peer.transfers import layouts as p

DATA = Path(__file__).parents[2] / "data" / "transfers"
ACCOUNTS = Path(__file__).parent / "accounts"
CAPTURES = sorted(DATA.iterdir())


def account_lines(name, folder=ACCOUNTS):
    """All lines of the account of a recording."""
    return [json.loads(line) for line in (folder / f"{name}.account.jsonl").read_text().splitlines()]


def of(lines, record):
    return [line for line in lines if line["record"] == record]


def messages(path):
    """The counted packets of a recording, cut by the peer's layouts."""
    for talk in recorded(path):
        for side in (0, 1):
            stream, at = talk.stream(side), 0
            while at < len(stream) and stream[at + 4 : at + 8] == b"LIOR":
                base = p.BaseHeader.decode(stream[at:])
                packet = stream[at : at + p.packet_length(base)]
                at += len(packet)
                if not base.internal:
                    yield packet
