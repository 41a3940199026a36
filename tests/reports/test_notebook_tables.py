"""What a notebook is told of tables that are not there, and of those that it may not read. No Spark.

`tests/user_code/test_notebooks.py` runs the notebooks where no table is.
"""

from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException

from pipeline.reports.notebook_tables import NotebookTables
from schemas.catalog import table as declared_table

WIDGETS = {"lake": "", "catalog": "main", "prefix": "msmq_"}


def spark(conditions):
    """A session in which reading some tables fails with an error condition."""

    class RefusedError(AnalysisException):
        def __init__(self, condition):
            super().__init__(condition)
            self.condition = condition

        def getCondition(self):  # noqa: N802 - Spark's name
            return self.condition

    def read(name):
        if name in conditions:
            raise RefusedError(conditions[name])
        return SimpleNamespace(columns=["a"], name=name)

    return SimpleNamespace(table=read, createDataFrame=lambda rows, schema: SimpleNamespace(rows=rows, schema=schema))


def test_a_table_that_is_not_there_is_named_and_empty():
    session = spark({"main.msmq_gold.coverage": "TABLE_OR_VIEW_NOT_FOUND"})
    table = NotebookTables(session, WIDGETS, "gold.coverage", "bronze.quarantine")
    assert table.describe_missing() == "Not in the lake, shown without rows: gold.coverage."
    assert (table("gold.coverage").rows, table("gold.coverage").schema) == (
        [],
        declared_table("gold.coverage").struct(),
    )
    assert table("bronze.quarantine").name == "main.msmq_bronze.quarantine"


@pytest.mark.parametrize("condition", ["INSUFFICIENT_PERMISSIONS", "CATALOG_NOT_FOUND"])
def test_a_table_that_cannot_be_read_is_not_shown_as_empty(condition):
    with pytest.raises(AnalysisException, match=condition):
        NotebookTables(spark({"main.msmq_gold.coverage": condition}), WIDGETS, "gold.coverage")


def test_a_table_that_the_notebook_did_not_name_is_refused():
    with pytest.raises(KeyError):
        NotebookTables(spark({}), WIDGETS, "gold.coverage")("gold.alerts")
