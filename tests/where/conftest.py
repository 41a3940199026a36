"""What tests of other places share."""

import pytest

from where.servers import made_by


@pytest.fixture(scope="module")
def properties(project, tmp_path_factory):
    """The properties file that set-up writes for spark-submit."""
    return made_by(project, "write_spark_conf", tmp_path_factory.mktemp("conf") / "spark.conf")
