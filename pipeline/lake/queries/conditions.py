"""Conditions that people write on the rows of a table or view: parsed, checked, and written anew for both stores.

DuckDB parses the text; nothing of it is executed. Only what is named here is taken: columns, literals, operators, and
functions of which both stores give the same. Texts become inputs of the query. Values of different kinds are not
compared: each store would convert them in its own way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from math import isinf
from typing import Any, Final, NamedTuple, TypeAlias

import duckdb
import pyarrow as pa
from pyarrow import types

from pipeline.lake.queries.inputs import Values
from pipeline.text import similar_names
from schemas.table import BIGINT, BOOLEAN, DATE, DOUBLE, INT, STRING, TIMESTAMP, quoted
from udfs.times import datetime_to_us

MAX_CHARS: Final = 10_000  # of a condition
_MAX_DEPTH: Final = 100  # of parts within parts
_MAX_DIGITS: Final = 38  # of a whole number
_RESERVED: Final = " (a column that is called like a word of SQL stands in `...`)"
_BEGIN, _END = "SELECT 1 FROM t WHERE (\n", "\n)"
_COMPARISONS: Final = {
    "COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "<>", "COMPARE_LESSTHAN": "<", "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=", "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM", "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}  # fmt: skip
_CONJUNCTIONS: Final = {"CONJUNCTION_AND": " AND ", "CONJUNCTION_OR": " OR "}
_NULL_CHECKS: Final = {"OPERATOR_IS_NULL": "IS NULL", "OPERATOR_IS_NOT_NULL": "IS NOT NULL"}
_PATTERNS: Final = {"~~": "LIKE", "!~~": "NOT LIKE", "~~*": "LIKE", "!~~*": "NOT LIKE"}  # ILIKE and NOT ILIKE have *
_ARITHMETIC: Final = ("+", "-", "*")
_TIME_LITERALS: Final = {"DATE": DATE, "TIMESTAMP": TIMESTAMP, "TIMESTAMP WITH TIME ZONE": TIMESTAMP}
# The letters that ``lower`` and ILIKE know: of others each store knows those of its own version of Unicode.
_UPPER: Final = "".join(each for each in map(chr, range(0x530)) if each.lower() != each and len(each.lower()) == 1)
_LOWER: Final = _UPPER.lower()
_SMALL_LETTERS: Final = str.maketrans(_UPPER, _LOWER)
_LOWER_SQL: Final = f"translate({{}}, '{_UPPER}', '{_LOWER}')"


_Node: TypeAlias = Mapping[str, Any]  # a part of the tree that the parser gives


class ConditionError(ValueError):
    """The condition is not taken: where it stops being one, and why."""


class RowCondition(NamedTuple):
    """A condition in SQL, as for ``Lake.query``, and the inputs that it names."""

    sql: str
    inputs: Mapping[str, Values]


class Function(NamedTuple):
    """A function with equal results in both stores: the kinds of its values, its type, its SQL, what it returns."""

    takes: tuple[str, ...]
    type: pa.DataType
    sql: str
    meaning: str


FUNCTIONS: Final[Mapping[str, Function]] = {
    "array_contains": Function(("list", "any"), BOOLEAN, "(array_position({}, {}) > 0)", "whether a list has a value"),
    "coalesce": Function(("any", "any"), STRING, "coalesce({})", "the first of several values that is not null"),
    "contains": Function(("text", "text"), BOOLEAN, "contains({}, {})", "whether a text has another one in it"),
    "date": Function(("time",), DATE, "CAST({} AS DATE)", "the day of a time, UTC"),
    "endswith": Function(("text", "text"), BOOLEAN, "endswith({}, {})", "whether a text ends with another one"),
    "hex": Function(("bytes",), STRING, "hex({})", "bytes as text: two of 0 to 9 and A to F for each"),
    "hour": Function(("time",), INT, "hour({})", "the hour of a time, UTC, 0 to 23"),
    "length": Function(("text",), INT, "length({})", "how many characters a text has"),
    "lower": Function(("text",), STRING, _LOWER_SQL, "a text with small Latin, Greek and Cyrillic letters"),
    "size": Function(("list",), INT, "size({})", "how many values a list has"),
    "startswith": Function(("text", "text"), BOOLEAN, "startswith({}, {})", "whether a text begins with another one"),
}
"""All functions by name; kind ``any``: of any one kind. ``coalesce`` takes more than two values too.

The parser gives ``coalesce`` as an operator and ``date`` as a conversion.
"""

ALLOWED: Final = (
    "allowed are columns, 'texts', numbers, TRUE, FALSE; = <> < > <= >=, IS [NOT] DISTINCT FROM, IS [NOT] NULL, "
    "[NOT] IN, [NOT] BETWEEN, [NOT] LIKE, [NOT] ILIKE; AND, OR, NOT; + - *; column.field, column['key']; "
    f"{', '.join(FUNCTIONS)}"
)
"""What a condition may have, in words."""


def parse_condition(text: str, columns: pa.Schema) -> RowCondition:
    """Return a condition on rows with these columns; ConditionError if it is none."""
    writer = _Writer(text, columns)
    sql = writer.condition(_parse(text))
    return RowCondition(sql, {name: values for name, values in writer.inputs.items() if f"{{{name}}}" in sql})


def kind_of(kind: pa.DataType) -> str:
    """Return the kind of the values of a type: values of one kind can be compared."""
    for name, is_of in (
        ("boolean", types.is_boolean), ("number", types.is_integer), ("number", types.is_floating),
        ("number", types.is_decimal), ("text", types.is_string), ("time", types.is_timestamp), ("date", types.is_date),
        ("bytes", types.is_binary), ("list", types.is_list), ("structure", types.is_struct),
    ):  # fmt: skip
        if is_of(kind):
            return name
    return "map"


def _parse(text: str) -> _Node:
    """Return the tree of a condition; ConditionError where it has a mistake, or more than one condition."""
    if len(text) > MAX_CHARS:
        raise ConditionError(f"has {len(text)} characters; {MAX_CHARS} at most")
    if not text.strip():
        raise ConditionError("is empty")
    with duckdb.connect() as parser:
        read = "SELECT json_serialize_sql(CAST(? AS VARCHAR))"
        sources = (_BEGIN + text + _END, _BEGIN + "TRUE" + _END)
        answers = [parser.execute(read, [each]).fetchall()[0][0] for each in sources]
    try:
        found, plain = map(json.loads, answers)
    except RecursionError as error:
        raise ConditionError("has too many parts within parts") from error
    if found["error"]:
        problem = found["error_message"].partition(" at or near")[0]
        if "position" not in found:
            raise ConditionError("has too many parts within parts" if "expression depth" in problem else problem)
        raise ConditionError(f"{_place(text, int(found['position']))}: {problem}{_RESERVED}")
    queries = [each["statements"][0]["node"] for each in (found, plain)]
    condition: _Node = queries[0].pop("where_clause", None)
    queries[1].pop("where_clause")
    if len(found["statements"]) != 1 or queries[0] != queries[1]:
        raise ConditionError("is more than one condition")
    return condition


def _place(text: str, location: int, length: int = 1) -> str:
    """Return in words where something stands; ``location`` and ``length`` are bytes of what was parsed."""
    begin, raw = location - len(_BEGIN), text.encode()
    if not 0 <= begin < len(raw):
        return "at the end"
    before, there = raw[:begin].decode(errors="ignore"), raw[begin : begin + max(length, 1)].decode(errors="ignore")
    return f"at character {len(before) + 1}{f' ({there})' if length > 1 else ''}"


class _Term(NamedTuple):
    """A part of a condition, in SQL. ``text``: of a literal text, what it says."""

    sql: str
    type: pa.DataType
    text: str | None = None

    @property
    def kind(self) -> str:
        return kind_of(self.type)


class _Writer:
    """Writes a tree as SQL of both stores."""

    def __init__(self, text: str, columns: pa.Schema) -> None:
        self._text, self._columns, self._depth = text, columns, 0
        self.inputs: dict[str, Values] = {}
        self._writers: Mapping[str, Callable[[_Node], _Term]] = {
            "COLUMN_REF": self._column, "CONSTANT": self._constant, "COMPARISON": self._comparison,
            "BETWEEN": self._between, "CONJUNCTION": self._conjunction, "OPERATOR": self._operator,
            "FUNCTION": self._function, "CAST": self._cast,
        }  # fmt: skip

    def condition(self, node: _Node) -> str:
        """Return the SQL of what is true or false."""
        term = self._term(node)
        if term.kind != "boolean":
            raise self._error(node, f"is a {term.kind}, not a condition")
        return term.sql

    def _term(self, node: _Node) -> _Term:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(node, "has too many parts within parts")
        write = self._writers.get(node["class"])
        if write is None:
            raise self._not_allowed(node)
        term = write(node)
        self._depth -= 1
        return term

    def _error(self, node: _Node, problem: str) -> ConditionError:
        return ConditionError(f"{_place(self._text, node['query_location'], node['query_location_length'])}: {problem}")

    def _not_allowed(self, node: _Node) -> ConditionError:
        return self._error(node, f"is not allowed; {ALLOWED}")

    def _literal(self, text: str) -> _Term:
        return _Term(self._input(text), STRING, text)

    def _input(self, values: Values) -> str:
        name = f"condition{len(self.inputs)}"
        self.inputs[name] = values
        return f"{{{name}}}"

    def _column(self, node: _Node) -> _Term:
        name, *fields = node["column_names"]
        if name not in self._columns.names:
            raise self._error(node, f"no column {name}{similar_names(name, self._columns.names)}")
        term = _Term(quoted(name), self._columns.field(name).type)
        for field in fields:
            names = [each.name for each in term.type] if term.kind == "structure" else []
            if field not in names:
                raise self._error(node, f"no field {field}{similar_names(field, names)}")
            term = _Term(f"{term.sql}.{quoted(field)}", term.type.field(field).type)
        return term

    def _constant(self, node: _Node) -> _Term:
        kind, text = node["literal"]["kind"], node["literal"]["text"]
        if kind == "STRING":
            return self._literal(text)
        if kind == "BOOLEAN":
            return _Term(text.upper(), BOOLEAN)
        digits = text.replace("_", "")
        if kind == "INTEGER" and len(digits.lstrip("-")) <= _MAX_DIGITS:
            return _Term(digits, BIGINT)
        if kind == "NUMERIC" and not isinf(float(digits)):
            return _Term(f"CAST('{float(digits)!r}' AS DOUBLE)", DOUBLE)
        hint = "; compare with IS NULL" if kind == "NULL_LITERAL" else ""
        raise self._error(node, f"{text or 'NULL'} is no literal that is taken here{hint}")

    def _comparison(self, node: _Node) -> _Term:
        operator = _COMPARISONS.get(node["type"])
        if operator is None:
            raise self._not_allowed(node)
        left, right = self._alike(node, [self._term(node["left"]), self._term(node["right"])])
        return _Term(f"({left.sql} {operator} {right.sql})", BOOLEAN)

    def _between(self, node: _Node) -> _Term:
        parts = self._alike(node, [self._term(node[name]) for name in ("input", "lower", "upper")])
        return _Term("({} BETWEEN {} AND {})".format(*(part.sql for part in parts)), BOOLEAN)

    def _conjunction(self, node: _Node) -> _Term:
        parts = [self.condition(each) for each in node["children"]]
        return _Term(f"({_CONJUNCTIONS[node['type']].join(parts)})", BOOLEAN)

    def _operator(self, node: _Node) -> _Term:
        kind, children = node["type"], node["children"]
        if kind == "OPERATOR_NOT":
            return _Term(f"(NOT {self.condition(children[0])})", BOOLEAN)
        if kind in _NULL_CHECKS:
            return _Term(f"({self._term(children[0]).sql} {_NULL_CHECKS[kind]})", BOOLEAN)
        if kind == "COMPARE_IN":
            return self._in_list(node, [self._term(each) for each in children])
        if kind == "OPERATOR_COALESCE":
            parts = self._alike(node, [self._term(each) for each in children])
            return _Term(f"coalesce({', '.join(part.sql for part in parts)})", parts[0].type)
        if kind == "ARRAY_EXTRACT":
            return self._map_value(node, *(self._term(each) for each in children))
        raise self._not_allowed(node)

    def _in_list(self, node: _Node, terms: Sequence[_Term]) -> _Term:
        value, *others = self._alike(node, terms)
        texts = [each.text for each in others if each.text is not None]
        listed = self._input(texts) if len(texts) == len(others) else f"({', '.join(each.sql for each in others)})"
        return _Term(f"({value.sql} IN {listed})", BOOLEAN)

    def _map_value(self, node: _Node, of: _Term, key: _Term) -> _Term:
        if of.kind != "map" or key.text is None:
            raise self._error(node, "is no value of a map: column['key']")
        return _Term(f"{of.sql}[{key.sql}]", of.type.item_type)

    def _cast(self, node: _Node) -> _Term:
        """Return the SQL of ``DATE '...'``, ``TIMESTAMP '...'``, and of ``date(...)``: no other conversion."""
        term, to = self._term(node["child"]), node["type_expr"]["type_name"].upper()
        if term.text is not None and to in _TIME_LITERALS:
            return self._time_literal(node, term.text, _TIME_LITERALS[to])
        if term.kind == "time" and to == "DATE":
            return _Term(FUNCTIONS["date"].sql.format(term.sql), DATE)
        raise self._not_allowed(node)

    def _function(self, node: _Node) -> _Term:
        name, given = node["function_name"].lower(), node["arguments"]
        if node["schema"] or node["distinct"] or node["filter"] or any(each["name"] for each in given):
            raise self._not_allowed(node)
        arguments = [self._term(each["expression"]) for each in given]
        if node["is_operator"]:
            return self._infix(node, name, arguments)
        function = FUNCTIONS.get(name)
        if function is None:
            raise self._error(node, f"no function {name}; {ALLOWED}")
        if name == "array_contains" and len(arguments) == 2 and arguments[0].kind == "list":
            listed, value = arguments
            arguments = [listed, self._alike(node, [_Term("", listed.type.value_type), value])[1]]
        kinds = tuple(each.kind for each in arguments)
        if len(kinds) != len(function.takes) or any(
            takes not in (kind, "any") for takes, kind in zip(function.takes, kinds, strict=True)
        ):
            raise self._error(node, f"{name} takes {', '.join(function.takes)}, not {', '.join(kinds) or 'nothing'}")
        return _Term(function.sql.format(*(each.sql for each in arguments)), function.type)

    def _infix(self, node: _Node, name: str, terms: Sequence[_Term]) -> _Term:
        if name in _PATTERNS and len(terms) == 2 and terms[0].kind == "text" and terms[1].text is not None:
            return self._pattern(name, terms[0].sql, terms[1].text)
        if name in _ARITHMETIC and all(each.kind == "number" for each in terms):
            numbers = [f"CAST({each.sql} AS DOUBLE)" for each in terms]
            return _Term(f"({name}{numbers[0]})" if len(numbers) == 1 else f"({f' {name} '.join(numbers)})", DOUBLE)
        if name in _PATTERNS:
            raise self._error(node, "LIKE compares a text with a pattern in '...'")
        raise self._not_allowed(node)

    def _pattern(self, name: str, sql: str, pattern: str) -> _Term:
        """Return the SQL of a pattern of % and _ alone: the stores differ in which character escapes these."""
        escape = next(each for each in map(chr, range(1, MAX_CHARS + 2)) if each not in pattern and each not in "%_'\\")
        if name.endswith("*"):
            sql, pattern = _LOWER_SQL.format(sql), pattern.translate(_SMALL_LETTERS)
        return _Term(f"({sql} {_PATTERNS[name]} {self._input(pattern)} ESCAPE '{escape}')", BOOLEAN)

    def _alike(self, node: _Node, terms: Sequence[_Term]) -> list[_Term]:
        """Return values of one kind: texts beside times are read as times. ConditionError for other kinds."""
        first = next((each for each in terms if each.text is None), terms[0])
        if first.kind in ("time", "date"):
            terms = [each if each.text is None else self._time_literal(node, each.text, first.type) for each in terms]
        kinds = {each.kind for each in terms}
        if len(kinds) > 1 or kinds & {"list", "structure", "map"}:
            raise self._error(node, f"cannot compare {' and '.join(sorted(kinds))}")
        return list(terms)

    def _time_literal(self, node: _Node, text: str, kind: pa.DataType) -> _Term:
        with suppress(ValueError, OverflowError):
            if types.is_date(kind):
                return _Term(f"DATE '{date.fromisoformat(text)}'", DATE)
            at = datetime.fromisoformat(text)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
            return _Term(f"timestamp_micros({datetime_to_us(at)})", TIMESTAMP)
        example = "2024-05-01" if types.is_date(kind) else "2024-05-01T12:00:00Z"
        raise self._error(node, f"not a {kind_of(kind)} like {example}: {text!r}")
