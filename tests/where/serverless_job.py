"""A job of a Spark Connect client whose session refuses settings, as on Databricks' serverless compute.

The arguments are the job's name and its own arguments. With the environment variable DIES the process ends by itself
when a run has committed everything but its watermarks.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import pytest
from pyspark.sql.connect.conf import RuntimeConf

from pipeline.lake.lake import Lake
from refused_settings import refuse_settings

KILLED = 9


def main(name, *arguments):
    """Run the job; return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        refused = refuse_settings(patch, RuntimeConf)
        if os.environ.get("DIES"):
            patch.setattr(Lake, "keep_watermarks", lambda _: os._exit(KILLED))
        code = import_module(f"jobs.{name}").main(list(arguments))
    assert refused
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
