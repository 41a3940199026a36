"""Buffer for rows that must wait for the end of a capture: in memory, beyond a limit in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

MAX_MEMORY_BYTES: Final = 64 << 20
MAX_SPOOL_BYTES: Final = 4 << 30
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")


class BatchSpool:
    """Buffers record batches of one schema in memory, then in a temporary file; ``drain`` returns them in order."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._memory: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: Any = None
        self._writer: Any = None

    @property
    def is_full(self) -> bool:
        """Whether the file has reached ``MAX_SPOOL_BYTES``: no more should be added."""
        return self._file is not None and self._file.tell() >= MAX_SPOOL_BYTES

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; beyond ``MAX_MEMORY_BYTES`` all batches in memory go to the file. Raises ``OSError``."""
        self._memory.append(batch)
        self._bytes += batch.nbytes
        if self._bytes <= MAX_MEMORY_BYTES:
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed in drain()
            self._writer = pa.ipc.new_stream(self._file, self.schema, options=_COMPRESSED)
        for kept in self._memory:
            self._writer.write_batch(kept)
        self._memory, self._bytes = [], 0

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches in order and remove them."""
        if self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            try:
                yield from pa.ipc.open_stream(self._file)
            finally:
                self._file.close()
                self._file = self._writer = None
        yield from self._memory
        self._memory, self._bytes = [], 0
