"""Many conversations for one lake: copies of recorded ones with their own addresses, cut and distributed over runs.

Sharing runs saves time: a run takes 15 s, whatever it reads.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from capture.merge.comparing import OF_FILES, OF_THE_RUN, PLACES, differences
from capture.merge.cutting import cut, elsewhere, padded, plain, records
from end_to_end.lakes import tables
from pcapgen.record import sample_captures
from pipeline.lake.lake import Lake
from schemas import catalog

SAMPLE = {path.name: path for path in sample_captures()}
SMALL = tuple(name for name, path in SAMPLE.items() if path.stat().st_size < 100_000)


@dataclass
class Conversations:
    """Captures of conversations with their own addresses, whole and cut into pieces, a folder of pieces for each run.

    ``descriptions``, by the first two parts of an address: the conversation, and how it was cut and distributed.
    """

    folder: Path
    count: int = 0
    pieces: list[tuple[int, str, bytes]] = field(default_factory=list)  # number of the run, name, content
    descriptions: dict[str, str] = field(default_factory=dict)

    @property
    def uncut(self) -> Path:
        return self.folder / "uncut"

    @property
    def cut(self) -> Path:
        return self.folder / "cut"

    def run(self, number: int) -> Path:
        return self.cut / str(number)

    def add(self, name: str, places: list[int], runs: list[int]) -> None:
        """Add a conversation of the sample, cut before these records, and give each piece to a run."""
        capture = elsewhere(plain(SAMPLE[name]), self.count)
        title = f"{self.count:03}_{Path(name).stem}"
        self.uncut.mkdir(parents=True, exist_ok=True)
        (self.uncut / title).write_bytes(capture)
        for index, (number, piece) in enumerate(zip(runs, cut(capture, places), strict=True)):
            self.pieces.append((number, f"{title}_{index}", piece))
        self.descriptions[f"10.{77 + self.count}"] = f"{title} cut at {places}, its files in runs {runs}"
        self.count += 1

    def add_any(self, name: str, chance: random.Random, *, last: int) -> None:
        """Add a conversation of the sample, cut at random and its pieces given at random to runs 1 to ``last``."""
        places = sorted(chance.sample(range(1, records(plain(SAMPLE[name]))), chance.randint(1, 6)))
        self.add(name, places, [chance.randint(1, last) for _ in range(len(places) + 1)])

    def write(self, *, padded_prefix: int = 0) -> None:
        """Write the pieces; pad those of the first ``padded_prefix`` conversations to one size above all others."""
        size = max(len(piece) for _, _, piece in self.pieces) + 64
        for number, name, piece in self.pieces:
            self.run(number).mkdir(parents=True, exist_ok=True)
            content = padded(piece, size) if int(name[:3]) < padded_prefix else piece
            (self.run(number) / name).write_bytes(content)

    def explain(self, lines: list[str]) -> str:
        """Return lines of differences, with the conversations that they are of."""
        places = {".".join(found.split(".")[:2]) for found in re.findall(r"\d+\.\d+\.\d+\.\d+", "\n".join(lines))}
        return "\n".join(
            [
                "",
                *lines,
                *(f"{place}.*: {self.descriptions[place]}" for place in sorted(places & self.descriptions.keys())),
            ]
        )

    def same(self, lake: Lake, uncut: Lake) -> None:
        """Fail unless all tables except those of files are equal, ignoring columns that locate rows in files."""
        both = [tables(each) for each in (lake, uncut)]
        for found in both:  # counts of files depend on the padding of pieces
            found["coverage"] = found["coverage"].filter(pc.not_equal(found["coverage"]["layer"], "capture"))
        lines = differences(*both, left_out=PLACES | OF_THE_RUN, not_compared=OF_FILES)
        assert not lines, self.explain(lines)

    def equal(self, lake: Lake, expected: Mapping[str, pa.Table]) -> None:
        """Fail unless a lake equals the ``tables`` of one that read the same files, except for columns of the run."""
        read = tables(lake, [table for table in catalog.DATA_TABLES if table.name in expected])
        found = differences(read, expected, left_out=OF_THE_RUN)
        assert not found, self.explain(found)
