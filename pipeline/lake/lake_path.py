"""Files and folders of a lake: on this machine, or on an object store.

On an object store, a file is there once it is complete, and a folder while something is in it or if it was made.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pipeline.lake.errors import LakeNameError
from pipeline.local_paths import SCHEME, lake_location
from udfs.files.filesystems import is_remote_location, resolve_filesystem


@dataclass(frozen=True, slots=True, order=True)
class LakePath:
    """A file or folder by its location: a path, or a URI of an object store. Functions raise ``OSError``."""

    location: str

    def __truediv__(self, name: str) -> LakePath:
        """Return what has this name in the folder."""
        return LakePath(f"{self.location}/{name}")

    def __str__(self) -> str:
        """Return the location."""
        return self.location

    @property
    def name(self) -> str:
        """The last part of the location."""
        return self.location.rpartition("/")[2]

    @property
    def folder(self) -> LakePath:
        """The folder that it is in."""
        return LakePath(self.location.rpartition("/")[0])

    @property
    def is_remote(self) -> bool:
        """Whether it is on an object store."""
        return is_remote_location(self.location)

    @property
    def filesystem_and_name(self) -> tuple[Any, str]:
        """The file system, as ``pyarrow.fs`` has it, and the name there."""
        return resolve_filesystem(self.location)

    def exists(self) -> bool:
        """Whether there is a file or a folder."""
        filesystem, name = self.filesystem_and_name
        return bool(filesystem.get_file_info(name).type != pafs.FileType.NotFound)

    def is_folder(self) -> bool:
        """Whether there is a folder."""
        filesystem, name = self.filesystem_and_name
        return bool(filesystem.get_file_info(name).type == pafs.FileType.Directory)

    def entries(self) -> list[LakePath]:
        """Return what is in the folder, sorted; nothing without a folder."""
        return sorted(self / info.base_name for info in self._listed())

    def files(self, suffix: str = "") -> dict[LakePath, int]:
        """Return the files in the folder that are complete, sorted, and their bytes; nothing without a folder."""
        found = {self / info.base_name: info.size for info in self._listed() if info.is_file}
        return {file: found[file] for file in sorted(found) if file.name[0] != "." and file.name.endswith(suffix)}

    def _listed(self) -> Sequence[Any]:
        filesystem, name = self.filesystem_and_name
        found: Sequence[Any] = filesystem.get_file_info(pafs.FileSelector(name, allow_not_found=True))
        return found

    def make_folder(self) -> None:
        """Make a folder, and those that it is in; one that is there stays."""
        filesystem, name = self.filesystem_and_name
        filesystem.create_dir(name, recursive=True)

    def read_text(self) -> str:
        """Return the text of a file; FileNotFoundError without one."""
        filesystem, name = self.filesystem_and_name
        with filesystem.open_input_stream(name) as stream:
            return bytes(stream.read()).decode()

    def write_text(self, text: str) -> None:
        """Write a file in one step, and its folder if there is none: readers find what was there before, or all."""
        written = self.temporary(uuid4().hex)
        if not self.is_remote:
            self.folder.make_folder()
        with written.open_output() as stream:
            stream.write(text.encode())
        self.publish(written)

    def open_output(self) -> pa.NativeFile:
        """Open a file to be written anew."""
        filesystem, name = self.filesystem_and_name
        return filesystem.open_output_stream(name)

    def temporary(self, suffix: str) -> LakePath:
        """Return where to write a file that readers must not find before it is complete; then ``publish`` it."""
        return self if self.is_remote else self.folder / f".{self.name}.{suffix}"

    def publish(self, written: LakePath) -> None:
        """Put what was written to ``temporary`` in the place of the file, in one step."""
        if written != self:
            filesystem, name = written.filesystem_and_name
            filesystem.move(name, self.location)

    def remove_file(self) -> None:
        """Remove a file, if there is one."""
        filesystem, name = self.filesystem_and_name
        with suppress(FileNotFoundError):
            filesystem.delete_file(name)

    def remove_folder(self) -> None:
        """Remove a folder with all that is in it, as far as it is there and can be removed."""
        filesystem, name = self.filesystem_and_name
        with suppress(OSError):
            filesystem.delete_dir(name)


def open_parquet(file: LakePath) -> pq.ParquetFile:
    """Open a Parquet file."""
    if not file.is_remote:
        return pq.ParquetFile(file.location, memory_map=True)
    filesystem, name = file.filesystem_and_name
    return pq.ParquetFile(name, filesystem=filesystem, pre_buffer=True)


def parquet_dataset(files: Sequence[LakePath], schema: pa.Schema) -> pads.Dataset:
    """Return the rows of Parquet files of one place; columns of ``schema`` that files do not have are null."""
    if not files:
        return pads.dataset(schema.empty_table())
    filesystem, _ = files[0].filesystem_and_name
    return pads.dataset(
        [file.filesystem_and_name[1] for file in files], schema=schema, filesystem=filesystem, format="parquet"
    )


def absolute_location(root: str) -> str:
    """Return the absolute path of a lake's folder, or its URI; LakeNameError for an object store other than S3."""
    if not is_remote_location(root) and not root.lower().startswith("file:"):
        return root.rstrip("/") if SCHEME.match(root) else os.path.abspath(root)  # noqa: PTH100
    try:
        return lake_location(root)
    except ValueError as error:
        raise LakeNameError(str(error)) from None
