"""The options of the data source ``msmq_capture``, checked: which rows and columns, and how captures are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pipeline.bronze.capture_tasks import READ_OPTION_NAMES, read_options
from pipeline.bronze.input_files import InputFile, list_files
from pipeline.silver.decode import DECODED_TABLES, DecodeSettings
from pipeline.transfers.one_capture import SESSION_TABLES
from schemas.table import Table
from udfs.capture.capture_reader import BRONZE_SCHEMAS

FORMAT_NAME: Final = "msmq_capture"
SILVER_TABLES: Final = {table.name: table for table in (*DECODED_TABLES, *SESSION_TABLES)}
"""The tables of silver whose rows one capture gives, by name."""
ROW_NAMES: Final = {name: name for name in (*BRONZE_SCHEMAS, *SILVER_TABLES)} | {"calls": "rpc_calls"}
"""What the option ``rows`` may be, and the name of the table that it means."""
_PATHS: Final = ("path", "paths")  # set by Spark: one, or several as JSON
_FLAGS: Final = ("keep_packets", "keep_bodies")
_OPTION_NAMES: Final = ("rows", "columns", *_FLAGS, *READ_OPTION_NAMES)
_MAX_FILES: Final = "maxFilesPerTrigger"


class CaptureOptions:
    """The options of a read.

    ``rows``: a table's name; ``columns``: names, in order; ``decode_settings``: of keep_packets and keep_bodies;
    ``reader``: those of the capture reader. ValueError for what is unknown or cannot be.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        texts = {name.lower(): text for name, text in options.items()}
        if _MAX_FILES.lower() in texts:
            raise ValueError(
                f"{FORMAT_NAME}: no {_MAX_FILES}: it needs Spark 4.2; a micro-batch reads all files that are new"
            )
        if unknown := sorted(texts.keys() - {*_OPTION_NAMES, *_PATHS}):
            raise ValueError(f"{FORMAT_NAME}: no option {unknown[0]}; one of {', '.join(_OPTION_NAMES)}")
        rows = texts.get("rows", "rpc_calls")
        if rows not in ROW_NAMES:
            raise ValueError(f"{FORMAT_NAME}: rows={rows!r}; one of {', '.join(ROW_NAMES)}")
        self.rows = ROW_NAMES[rows]
        self.columns = self._chosen_columns(texts.get("columns"))
        packets, bodies = (_flag(name, texts.get(name, "false")) for name in _FLAGS)
        self.decode_settings = DecodeSettings(packets, bodies)
        self.paths: list[str] = (
            json.loads(texts["paths"]) if "paths" in texts else [texts["path"]] if "path" in texts else []
        )
        for name in READ_OPTION_NAMES:
            try:
                read_options({each: text for each, text in texts.items() if each == name})
            except (ValueError, AttributeError) as error:
                raise ValueError(f"{FORMAT_NAME}: {name}={texts[name]!r}: {error}") from error
        self.reader = read_options(texts, all_pdus=self.rows == "pdus")

    def files(self) -> list[InputFile]:
        """Return the files at the paths now; ValueError without a path, InputError for one that is not there."""
        if not self.paths:
            raise ValueError(f"{FORMAT_NAME}: which captures? load(path), or load with a list of paths")
        return list_files(self.paths)

    @property
    def table(self) -> Table | None:
        """The table of silver whose rows are read; None for other rows."""
        return SILVER_TABLES.get(self.rows)

    @property
    def schema(self) -> StructType:
        """The schema of the chosen columns."""
        every = self._every_column
        return StructType([every[name] for name in self.columns])

    @cached_property
    def _every_column(self) -> StructType:
        arrow = BRONZE_SCHEMAS[self.rows] if self.table is None else self.table.schema()
        return from_arrow_schema(arrow)

    def _chosen_columns(self, text: str | None) -> tuple[str, ...]:
        """Return the names in a text, each once; all without one."""
        names = self._every_column.names
        if text is None:
            return tuple(names)
        chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
        if unknown := [name for name in chosen if name not in names]:
            raise ValueError(f"{FORMAT_NAME}: {self.rows} has no column {unknown[0]!r}; one of {', '.join(names)}")
        return chosen


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{FORMAT_NAME}: {name}={text!r}; true or false")
    return text.lower() == "true"
