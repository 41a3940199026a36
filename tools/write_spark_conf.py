"""Write the properties file for spark-submit: what jobs/session.py sets by itself when it is started as plain Python.

Jars and extensions come too late in a session's builder; spark-submit must have them before.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jobs.session import PROJECT, SETTINGS, delta_jars, java_settings

HEAD = """\
# Made by `make setup` for this machine, from jobs/session.py; not kept in the repository.
# spark-submit --properties-file conf/spark.conf --py-files dist/pyfiles.zip jobs/run_all.py ...
# On a cluster: --conf spark.pyspark.python=... names the executors' Python, --conf spark.jars=... Delta's jars there.
"""


def properties() -> dict[str, str]:
    """Every property, by name."""
    return {
        **SETTINGS,
        **java_settings(),
        "spark.jars": ",".join(jar.as_uri() for jar in delta_jars()),
        "spark.pyspark.python": str(PROJECT / ".venv" / "bin" / "python"),
    }


def main() -> None:
    """Write them to the file named on the command line."""
    escaped = {name: value.replace("\\", "\\\\") for name, value in properties().items()}
    text = HEAD + "".join(f"{name} {value}\n" for name, value in escaped.items())
    Path(sys.argv[1]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
