"""Many conversations for one lake: copies of recorded ones, each between machines of its own, cut and spread over runs.

A run costs a quarter of a minute whatever it reads.
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
    """Captures of conversations between machines of their own, and their pieces in a folder for each run.

    ``told``: for each of their addresses, which conversation it is of and how that was cut and spread over runs.
    """

    folder: Path
    count: int = 0
    pieces: list[tuple[int, str, bytes]] = field(default_factory=list)  # number of the run, name, content
    told: dict[str, str] = field(default_factory=dict)

    @property
    def uncut(self) -> Path:
        return self.folder / "uncut"

    @property
    def cut(self) -> Path:
        return self.folder / "cut"

    def run(self, number: int) -> Path:
        return self.cut / str(number)

    def add(self, name: str, places: list[int], runs: list[int]) -> None:
        """Add a conversation of the sample cut at these places, each piece given to a run."""
        capture = elsewhere(plain(SAMPLE[name]), self.count)
        title = f"{self.count:03}_{Path(name).stem}"
        self.uncut.mkdir(parents=True, exist_ok=True)
        (self.uncut / title).write_bytes(capture)
        for index, (number, piece) in enumerate(zip(runs, cut(capture, places), strict=True)):
            self.pieces.append((number, f"{title}_{index}", piece))
        self.told[f"10.{77 + self.count}"] = f"{title} cut at {places}, its files in runs {runs}"
        self.count += 1

    def add_any(self, name: str, chance: random.Random, *, last: int) -> None:
        """Add a conversation of the sample cut anywhere, its pieces given by chance to runs 1 to ``last``."""
        places = sorted(chance.sample(range(1, records(plain(SAMPLE[name]))), chance.randint(1, 6)))
        self.add(name, places, [chance.randint(1, last) for _ in range(len(places) + 1)])

    def write(self, *, padded_prefix: int = 0) -> None:
        """Write the pieces, those of the first conversations all of one size, above that of all others."""
        size = max(len(piece) for _, _, piece in self.pieces) + 64
        for number, name, piece in self.pieces:
            self.run(number).mkdir(parents=True, exist_ok=True)
            content = padded(piece, size) if int(name[:3]) < padded_prefix else piece
            (self.run(number) / name).write_bytes(content)

    def explain(self, lines: list[str]) -> str:
        """Lines of differences, and of which conversations they are."""
        places = {".".join(found.split(".")[:2]) for found in re.findall(r"\d+\.\d+\.\d+\.\d+", "\n".join(lines))}
        return "\n".join(
            ["", *lines, *(f"{place}.*: {self.told[place]}" for place in sorted(places & self.told.keys()))]
        )

    def same(self, lake: Lake, uncut: Lake) -> None:
        """Fail unless the facts are the same, in all tables but those of files, without places."""
        both = [tables(each) for each in (lake, uncut)]
        for found in both:  # what is counted of files: the padding of pieces too
            found["coverage"] = found["coverage"].filter(pc.not_equal(found["coverage"]["layer"], "capture"))
        lines = differences(*both, left_out=PLACES | OF_THE_RUN, not_compared=OF_FILES)
        assert not lines, self.explain(lines)

    def equal(self, lake: Lake, expected: Mapping[str, pa.Table]) -> None:
        """Fail unless a lake equals the ``tables`` of one that read the same files, in all columns but the run's."""
        read = tables(lake, [table for table in catalog.ALL if table.name in expected])
        found = differences(read, expected, left_out=OF_THE_RUN)
        assert not found, self.explain(found)
