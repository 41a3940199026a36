"""Write the properties file for spark-submit, with the settings that jobs/session.py uses in plain Python.

spark-submit needs jars and extensions before the session is built, so a job cannot set them. What only workers of this
machine may have is not there: ``get_spark_session`` adds it if the master is local.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jobs.session import PROJECT_ROOT, SPARK_SETTINGS, delta_jars, java_options

FILE_HEADER = """\
# Made by `make setup` for this machine, from jobs/session.py; not part of the repository.
# spark-submit --properties-file conf/spark.conf --py-files dist/pyfiles.zip jobs/run_all.py ...
# On a cluster: set --conf spark.pyspark.python=... to the executors' Python. They get Delta's jars from the driver
# (spark.jars), which has them on its class path.
"""


def spark_properties() -> dict[str, str]:
    """Return all Spark properties by name."""
    jars = delta_jars()
    return {
        **SPARK_SETTINGS,
        **java_options(),
        "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),
        "spark.jars": ",".join(jar.as_uri() for jar in jars),
        "spark.pyspark.python": str(PROJECT_ROOT / ".venv" / "bin" / "python"),
    }


def main() -> None:
    """Write the properties to the path given on the command line."""
    escaped = {name: value.replace("\\", "\\\\") for name, value in spark_properties().items()}
    text = FILE_HEADER + "".join(f"{name} {value}\n" for name, value in escaped.items())
    Path(sys.argv[1]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
