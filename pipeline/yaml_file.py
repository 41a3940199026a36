"""Files of YAML that people write: their nodes are read by what a format allows, and every error names its line.

Only nodes are made (``yaml.compose``), by PyYAML's safe loader: nothing in a file becomes an object of Python.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, TypeVar

import yaml

from pipeline.text import escape_unprintable

_MAX_DEPTH: Final = 20  # of lists and mappings in each other; the parser calls itself for each
_MAX_SHOWN_CHARS: Final = 60  # of a text of the file in an error
_Value = TypeVar("_Value")


class YamlFile:
    """Reads the nodes of one file. ``error_type`` is raised for what is not as it should be."""

    def __init__(self, path: Path | Traversable, error_type: type[Exception]) -> None:
        self.path = path
        self._error_type = error_type

    def root(self, max_bytes: int | None = None, *, aliases: bool = True) -> yaml.Node | None:
        """Return the file's node, None if it is empty. Without ``aliases`` a node that refers to another is refused."""
        try:
            with self.path.open("rb") as opened:
                data = opened.read(-1 if max_bytes is None else max_bytes + 1)
            if max_bytes is not None and len(data) > max_bytes:
                raise self._error_type(f"{self.path}: more than {max_bytes} bytes")
            node: yaml.Node | None = yaml.compose(data.decode(), Loader=_Loader if aliases else _LoaderWithoutAliases)
        except OSError as error:
            raise self._error_type(f"{self.path}: {error.strerror}") from error
        except yaml.MarkedYAMLError as error:
            line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
            raise self._error_type(f"{self.path}{line}: not YAML: {error.problem}") from error
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise self._error_type(f"{self.path}: not YAML: {' '.join(str(error).split())}") from error
        return node

    def error(self, node: yaml.Node, message: str) -> Exception:
        """Return the error about a node."""
        return self._error_type(f"{self.path}:{node.start_mark.line + 1}: {message}")

    def fields(
        self, node: yaml.Node, what: str, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
    ) -> dict[str, yaml.Node]:
        """Return the entries of a mapping by name."""
        names = ", ".join((*required, *optional))
        found: dict[str, yaml.Node] = {}
        for name, key, value in self.named(node, what, f"a mapping of {names}"):
            if name not in (*required, *optional):
                raise self.error(key, f"{what}: unknown name {shown(name)} (there are {names})")
            found[name] = value
        if missing := [name for name in required if name not in found]:
            raise self.error(node, f"{what}: {missing[0]} is missing")
        return found

    def named(self, node: yaml.Node, what: str, expected: str) -> list[tuple[str, yaml.Node, yaml.Node]]:
        """Return (name, node of the name, node of the value) for the entries of a mapping, each name once."""
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, f"{what}: expected {expected}")
        found: dict[str, tuple[str, yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            if name in found:
                raise self.error(key, f"{what}: {shown(name)} appears twice")
            found[name] = name, key, value
        return list(found.values())

    def entries(
        self, node: yaml.Node | None, what: str, read: Callable[[yaml.Node, str], tuple[_Value, object]]
    ) -> list[_Value]:
        """Return the entries of a list; ``read`` returns an entry and what no other entry may have too."""
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise self.error(node, f"{what}: expected a list")
        found, seen = [], set[object]()
        for entry in node.value:
            value, identity = read(entry, what)
            if identity in seen:
                raise self.error(entry, f"{what}: {identity} appears twice")
            seen.add(identity)
            found.append(value)
        return found

    def text(self, node: yaml.Node, what: str, max_chars: int | None = None) -> str:
        """Return a text that is not empty; with ``max_chars`` it has no more, and all of them can be printed."""
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self.error(node, f"{what}: expected text")
        text = str(node.value)
        if max_chars is not None and (len(text) > max_chars or not text.isprintable()):
            raise self.error(node, f"{what}: expected at most {max_chars} characters, all printable, in one line")
        return text


def shown(text: str) -> str:
    """Return a text of a file as errors show it."""
    return escape_unprintable(text, _MAX_SHOWN_CHARS)


class _Loader(yaml.SafeLoader):
    """The safe loader, for files that are not too deep."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.depth == _MAX_DEPTH:
            raise self.error(f"deeper than {_MAX_DEPTH}")
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def error(self, problem: str) -> yaml.MarkedYAMLError:
        """Return the error about what comes next in the file."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _LoaderWithoutAliases(_Loader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise self.error("aliases are not allowed")
        return super().compose_node(parent, index)
