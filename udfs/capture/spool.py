"""Rows that must wait for the end of a capture: in memory while they are few, then in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

MEMORY_BYTES: Final = 64 << 20


class Spool:
    """Record batches of one schema, written in order and read back once."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._file: Any = None
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch."""
        if self._writer is None:
            self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115 - closed in batches()
            self._writer = pa.ipc.new_stream(self._file, self.schema)
        self._writer.write_batch(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield what was kept, then forget it."""
        if self._writer is None:
            return
        self._writer.close()
        self._file.seek(0)
        try:
            yield from pa.ipc.open_stream(self._file)
        finally:
            self._file.close()
            self._file = self._writer = None
