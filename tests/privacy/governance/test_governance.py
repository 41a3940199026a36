"""The SQL of Unity Catalog: what is tagged, what views leave out, who may read; and the job that executes it."""

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

from engines import without_spark
from jobs import apply_governance, run_all
from jobs.config import Config, ConfigError
from pipeline.lake.lake import Lake
from pipeline.privacy.governance import Governance, tag_value, view_name
from pipeline.settings import GovernanceConfig, LakeConfig
from privacy.redaction import planted
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, QUARANTINE
from schemas.catalog import ALL_TABLES
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.table import literal
from udfs.pseudonyms import PSEUDONYM_KINDS

GOLDEN = Path(__file__).with_name("golden.sql")
HOSTILE = "o'brien `a\\`; $x"
ALL = Governance(
    "main", "msmq_", "msmq_shared", frozenset(PSEUDONYM_KINDS), "msmq_data", "msmq owners", ("engineers",),
    ("analysts", "a`b@example.com"),
)  # fmt: skip
IDENTIFIER, TEXT = r"`(?:[^`]|``)+`", r"'(?:[^'\\]|\\.)*'"
SCHEMA, RELATION = rf"{IDENTIFIER}\.{IDENTIFIER}", rf"{IDENTIFIER}\.{IDENTIFIER}\.{IDENTIFIER}"
# Statements that Spark's parser does not know, as the SQL language reference of Databricks has them.
OF_UNITY_CATALOG = [
    rf"ALTER TABLE {RELATION} ALTER COLUMN {IDENTIFIER} SET TAGS \({TEXT} = {TEXT}\)",
    rf"GRANT USE SCHEMA, SELECT ON SCHEMA {SCHEMA} TO {IDENTIFIER}",
    rf"ALTER (TABLE|VIEW) {RELATION} SET OWNER TO {IDENTIFIER}",
]
# What Spark's parser makes of the others.
PLANS = {
    "COMMENT ON SCHEMA ": "CommentOnNamespace",
    "CREATE SCHEMA ": "CreateNamespace",
    "CREATE OR REPLACE VIEW ": "CreateView",
}


def statements(governance, *tables):
    return [each.sql for each in governance.statements({table: table.names for table in tables or ALL_TABLES})]


def view_columns(governance, table):
    """The columns that the view of a table selects, by its text."""
    [view] = [sql for sql in statements(governance, table) if sql.startswith("CREATE OR REPLACE VIEW")]
    declared, selected = view.split("\nAS SELECT ")
    names = re.findall(IDENTIFIER, selected.partition(" FROM ")[0])
    assert names == re.findall(rf"^  ({IDENTIFIER}) COMMENT ", declared, re.MULTILINE)
    return [name.strip("`") for name in names]


@pytest.mark.parametrize("table", ALL_TABLES, ids=str)
def test_each_column_is_in_the_view_or_tagged(table):
    text = "\n".join(statements(ALL, table))
    tagged = re.findall(r"ALTER COLUMN `(\w+)` SET TAGS \('msmq_data' = '(?:personal|body)'\)", text)
    viewed = view_columns(ALL, table)
    assert set(tagged).isdisjoint(viewed)
    assert sorted([*tagged, *viewed]) == sorted(table.names)


def test_what_is_private_is_not_in_views():
    names = {name for table in ALL_TABLES for name in view_columns(ALL, table)}
    private = {
        "body", "body_sha256", "packet", "request_stub", "response_stub", "sample", "marshaled", "arguments",
        "extension", "label", "principal", "sender_id", "caller_name", "auth_principal", "client_name", "host_name",
        "client_address", "server_address", "readers", "reports", "queue", "response_queue", "message", "subject",
        "observed", "value_text", "properties",
    }  # fmt: skip
    assert names & private == set()
    assert "workstation" not in view_columns(ALL, RECEIVE_ATTEMPTS)  # in bronze.pings it is a flag
    assert "queue_manager" not in view_columns(ALL, QUEUE_HISTORY)  # in silver.order_acks it is a GUID
    assert private <= {name for table in ALL_TABLES for name in table.names}
    assert {"call_key", "outcome", "lookup_id", "confidence", "event_date"} <= names


def test_values_of_tags():
    values = {column.name: tag_value(MESSAGES, column) for column in MESSAGES.columns}
    assert (values["body"], values["label"], values["message_key"], values["body_bytes"]) == (
        "body", "personal", None, None,
    )  # fmt: skip


def test_views_leave_out_the_kinds_that_settings_name():
    of_kinds = {
        kinds: set(view_columns(Governance("c", "", "v", frozenset(kinds), "t"), RECEIVE_ATTEMPTS))
        for kinds in ((), ("senders",), ("senders", "addresses"))
    }
    assert of_kinds[()] == set(RECEIVE_ATTEMPTS.names)
    assert of_kinds[()] - of_kinds["senders",] == {"principal"}
    assert of_kinds["senders",] - of_kinds["senders", "addresses"] == {"client_address", "server_address"}
    without_names = set(view_columns(Governance("c", "", "v", frozenset(), "t"), MESSAGES))
    assert set(MESSAGES.names) - without_names == {
        "body", "body_sha256", "extension", "soap_header", "application_headers", "exception_message",
    }  # fmt: skip


def test_columns_that_are_not_stored_are_in_no_statement():
    [create] = [
        each.sql
        for each in ALL.statements({QUARANTINE: {"quarantine_key", "sample", "of_somebody_else"}})
        if "VIEW" in each.sql and each.sql.startswith("CREATE")
    ]
    assert create.endswith("AS SELECT `quarantine_key` FROM `main`.`msmq_bronze`.`quarantine`")


def test_nothing_set_nothing_granted():
    text = "\n".join(statements(Governance("main", "", "shared", frozenset(PSEUDONYM_KINDS), "t")))
    assert not re.search(r"^GRANT|OWNER TO", text, re.MULTILINE)
    assert {"COMMENT", "CREATE", "ALTER"} == set(
        re.findall(r"^([A-Z]+)\b.*(?:IS|VIEW|SCHEMA|TAGS)", text, re.MULTILINE)
    )


def test_readers_of_views_may_read_nothing_else():
    granted = [sql for sql in statements(ALL) if sql.startswith("GRANT")]
    of_analysts = [sql for sql in granted if "analysts" in sql or "example" in sql]
    assert all("ON SCHEMA `main`.`msmq_shared` TO" in sql for sql in of_analysts)
    assert len(of_analysts) == 2
    assert len(granted) - len(of_analysts) == 3  # a schema of each layer
    order = statements(ALL)
    last_view = max(at for at, sql in enumerate(order) if sql.startswith("CREATE"))
    first_owner = min(at for at, sql in enumerate(order) if "SET OWNER TO" in sql)
    assert last_view < order.index(granted[0]) < order.index(granted[-1]) < first_owner


def test_the_sql_of_three_tables():
    """UPDATE_GOLDEN=1 writes the file again."""
    text = "".join(f"{sql};\n" for sql in statements(ALL, QUARANTINE, QUEUE_ALIASES, HOSTS))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["plain", HOSTILE])
def test_every_statement_can_be_parsed(spark, name):
    governance = Governance(name, name, f"{name}views", frozenset(PSEUDONYM_KINDS), name, name, (name,), (name, "b"))
    parser = spark._jsparkSession.sessionState().sqlParser()
    of_catalog, of_spark = [], []
    for sql in statements(governance):
        known = any(re.fullmatch(pattern, sql) for pattern in OF_UNITY_CATALOG)
        (of_catalog if known else of_spark).append(sql)
    for sql in of_spark:
        kind = next(kind for kind in PLANS if sql.startswith(kind))
        assert parser.parsePlan(sql).getClass().getSimpleName() == PLANS[kind]
    assert len(of_spark) == 5 + len(ALL_TABLES)
    assert len(of_catalog) > 4 * len(ALL_TABLES)


ENDS = ("client_address", "server_address")
# Columns for words of the specifications and of the collector, in whose place a peer or a file can put any text.
WORDS = {
    *(f"bronze.snapshots_raw.{name}" for name in ("collector_version", "error")),
    "silver.management_calls.action",
    "silver.messages.intent",
    *(f"silver.queue_snapshots.{name}" for name in ("foreign", "location", "state", "type", "xact")),
    *(f"silver.machine_snapshots.{name}" for name in ("connected", "type")),
    *(f"gold.{table}.state" for table in ("machine_history", "queue_history")),
    *(f"gold.management_actions.{name}" for name in ("action", "state_after")),
}


def test_columns_of_views_hold_no_text_of_the_input(tmp_path):
    """Every free text of the captures and snapshots is a token: in each layer, only tagged columns have any."""
    tokens, captures, snapshots = planted.Tokens(planted.LETTERS), tmp_path / "in", tmp_path / "snapshots.jsonl"
    captures.mkdir()
    for number, capture in enumerate(planted.captures(tokens)):
        (captures / f"{number}.pcapng").write_bytes(capture)
    snapshots.write_text("\n".join(planted.snapshot_lines(tokens)))
    given = ["--lake", str(tmp_path / "lake"), "--captures", str(captures), "--snapshots", str(snapshots)]
    settings = ["--set", "run.engine=local", "--set", "store.bodies=true", "--set", "store.packets=true"]
    assert run_all.main([*given, *settings]) in (0, 3)
    lake = Lake(without_spark(), str(tmp_path / "lake"))
    addresses = {address for row in lake.select(CONNECTIONS, "TRUE", ENDS).to_pylist() for address in row.values()}
    found, tagged = set(), set()
    for table in filter(lake.exists, ALL_TABLES):
        rows = lake.select(table, "TRUE")
        for column in table.columns:
            if any(names_in(value, tokens, addresses) for value in rows.column(column.name).to_pylist()):
                (found if ALL.is_in_views(table, column) else tagged).add(f"{table}.{column.name}")
    assert found == WORDS
    assert len(tagged) > 60
    assert {"silver.messages.body", "gold.ack_sequences.readers", "gold.alerts.subject"} <= tagged


def names_in(value, tokens, addresses):
    """Whether a token is in a text or in bytes anywhere in a value, or a text is an address of the captures."""
    if isinstance(value, dict):
        return any(names_in(each, tokens, addresses) for each in value.values())
    if isinstance(value, list):
        return any(names_in(each, tokens, addresses) for each in value)
    return isinstance(value, str | bytes) and (tokens.among(planted.readings(value)) or value in addresses)


# -- the job -----------------------------------------------------------------------------------------------------------


def test_the_sql_is_printed_without_spark(monkeypatch, capsys):
    monkeypatch.setattr(apply_governance, "open_lake_with_data", lambda _: pytest.fail("opened a lake"))
    given = ["lake.catalog=main", "lake.prefix=msmq_", "governance.owner=msmq owners",
             "governance.readers=[engineers]", "governance.view_readers=[analysts, a`b@example.com]"]  # fmt: skip
    arguments = [part for setting in given for part in ("--set", setting)]
    assert apply_governance.main(["--lake", "x", "--dry-run", *arguments]) == 0
    *printed, summary = capsys.readouterr().out.splitlines()
    assert "\n".join(printed) == "".join(f"{sql};\n" for sql in statements(ALL)).rstrip("\n")
    assert f'"statements": {len(statements(ALL))}' in summary


@pytest.mark.parametrize(
    ("lake", "governance", "says"),
    [
        ({"catalog": None}, {}, "need a catalog"),
        ({}, {"view_schema": "P_Gold"}, "governance.view_schema: P_Gold holds tables"),
        ({}, {"owner": ""}, "governance.owner: '': must be"),
        ({}, {"readers": ("a", "${b}")}, "governance.readers: '${b}': must be"),
        ({}, {"view_readers": ("a\nb",)}, "governance.view_readers: 'a\\nb': must be"),
        ({}, {"tag": " "}, "governance.tag: ' ': must be"),
    ],
)
def test_what_cannot_be_configured(lake, governance, says):
    config = Config(
        lake=LakeConfig(**{"catalog": "c", "prefix": "p_", **lake}), governance=GovernanceConfig(**governance)
    )
    with pytest.raises(ConfigError, match=re.escape(says)):
        apply_governance.configured_governance(config)


def test_the_default_schema_of_views_has_the_prefix():
    config = Config(lake=LakeConfig(catalog="c", prefix="p_"))
    assert apply_governance.configured_governance(config).view_schema == "p_shared"


@pytest.fixture
def governed(spark, tmp_path):
    """A lake in Spark's own catalog with one row and an empty ledger, and the arguments of the job for it."""
    lake = Lake(spark, str(tmp_path), catalog="spark_catalog", prefix="governed_")
    lake.create(CAPTURE_FILES)
    row = {"quarantine_key": "k", "sample": b"secret"}
    lake.append(QUARANTINE, pa.Table.from_pylist([row], QUARANTINE.schema()).drop_columns(["event_date"]))
    yield ["--lake", str(tmp_path), "--set", "lake.catalog=spark_catalog", "--set", "lake.prefix=governed_"]
    for schema in ("governed_bronze", "governed_shared", "information_schema"):
        spark.sql(f"DROP SCHEMA IF EXISTS spark_catalog.{schema} CASCADE")


def test_views_are_made_and_nothing_is_done_twice(governed, spark, capsys):
    """Spark's own catalog knows views and no tags; with an information schema of the test it says what is in effect."""
    assert apply_governance.main(governed) == 2
    said = capsys.readouterr().err
    assert "does not say what is in effect" in said
    assert re.search(
        r"not executed: ALTER TABLE `spark_catalog`\.`governed_\w+`\.`\w+` .* SET TAGS: \[PARSE_SYNTAX_ERROR\] .*\n$",
        said,
    )
    assert "== SQL ==" not in said
    view = spark.table(f"spark_catalog.governed_shared.{view_name(QUARANTINE)}")
    assert view.columns == view_columns(ALL, QUARANTINE)
    assert [row["quarantine_key"] for row in view.collect()] == ["k"]
    assert view.schema["quarantine_key"].metadata["comment"] == QUARANTINE.column("quarantine_key").comment
    assert spark.catalog.tableExists(f"spark_catalog.governed_shared.{view_name(CAPTURE_FILES)}")
    assert not spark.catalog.tableExists(f"spark_catalog.governed_shared.{view_name(HOSTS)}")

    governance = Governance("spark_catalog", "governed_", "governed_shared", ALL.views_without, "msmq_data")
    tables = {CAPTURE_FILES: CAPTURE_FILES.names, QUARANTINE: QUARANTINE.names}
    effects = {effect for each in governance.statements(tables) for effect in each.effects}
    spark.sql("CREATE SCHEMA spark_catalog.information_schema")
    publish(spark, effects)
    assert apply_governance.main(governed) == 0
    assert "0 statements executed" in capsys.readouterr().out
    comment = next(each for each in sorted(effects, key=str) if each[:2] == ("schema comment", "governed_shared"))
    spark.sql("COMMENT ON SCHEMA spark_catalog.governed_shared IS 'another'")
    publish(spark, effects - {comment})
    assert apply_governance.main(governed) == 0
    assert "1 statements executed" in capsys.readouterr().out
    described = {row[0]: row[1] for row in spark.sql("DESCRIBE SCHEMA spark_catalog.governed_shared").collect()}
    assert described["Comment"] == comment[-1]


def publish(spark, effects):
    """Make the views of an information schema that say that these are in effect."""
    relations = {
        "schemata": (("schema_name", "comment"), {"schema", "schema comment"}),
        "views": (("table_schema", "table_name", "view_definition"), {"view"}),
        "tables": (("table_schema", "table_name", "comment", "table_owner"), {"view comment"}),
        "columns": (("table_schema", "table_name", "column_name", "comment"), {"column comment"}),
        "column_tags": (("schema_name", "table_name", "column_name", "tag_name", "tag_value"), {"tag"}),
        "schema_privileges": (("schema_name", "grantee", "privilege_type"), {"privilege"}),
    }
    for name, (columns, kinds) in relations.items():
        rows = [effect[1:] for effect in effects if effect[0] in kinds]
        values = [", ".join("NULL" if each is None else literal(each) for each in row) for row in rows]
        padded = [
            f"({', '.join([row, *['NULL'] * (len(columns) - len(one))])})"
            for row, one in zip(values, rows, strict=True)
        ]
        empty = f"({', '.join(['NULL'] * len(columns))})"
        spark.sql(
            f"CREATE OR REPLACE VIEW spark_catalog.information_schema.{name} AS "
            f"SELECT * FROM VALUES {', '.join(padded or [empty])} AS t({', '.join(columns)})"
        )
