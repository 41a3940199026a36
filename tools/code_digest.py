"""Digest of definitions of the project with all that they use: it changes when what they compute may change.

Comments, docstrings, formatting, imports and the version of Python do not change it. A definition is a function, a
class or a constant at the top of a module. What it uses is found by name: definitions of its module, and those that its
module imports from ``pipeline`` and ``udfs``. Of a class all methods count, so annotations lead to what is called of
an argument.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

_PACKAGES: Final = ("pipeline.", "udfs.")
_IGNORED_FIELDS: Final = {"ctx", "kind", "type_comment", "type_params"}
_DIGITS: Final = 16


class Definition(NamedTuple):
    """A name at the top of a module."""

    module: str
    name: str


class CodeDigest:
    """Digests of the code in a project's folder. Definitions in ``excluded``, and modules below, do not count."""

    def __init__(self, project: Path, excluded: Iterable[str] = ()) -> None:
        """``excluded`` are names of packages, modules, or of definitions with their module."""
        self._project = project
        self._excluded = tuple(excluded)
        self._modules: dict[str, _Module | None] = {}

    def of(self, definitions: Iterable[Definition], *facts: str) -> str:
        """Return the digest of some definitions, and of further facts. ``KeyError`` for a definition that is none."""
        definitions = {*definitions}
        for each in definitions:
            module = self._module(each.module)
            if module is None or each.name not in module.definitions:
                raise KeyError(f"{each.module} has no {each.name}")
        texts = [f"{each.module}.{each.name} {text}" for each, text in self._used(definitions)]
        return hashlib.sha256("\n".join([*sorted(texts), *facts]).encode()).hexdigest()[:_DIGITS]

    def _used(self, definitions: Iterable[Definition]) -> Iterator[tuple[Definition, str]]:
        """Yield definitions and all that they use, each with its text."""
        waiting, seen = [*definitions], set()
        while waiting:
            each = waiting.pop()
            module = None if each in seen else self._module(each.module)
            seen.add(each)
            if module is None or self._is_excluded(f"{each.module}.{each.name}"):
                continue
            if each.name in module.imports:
                waiting.append(module.imports[each.name])
            for node in module.definitions.get(each.name, ()):
                yield each, canonical_text(node)
                waiting += self._names(each.module, module, node)

    def _names(self, name: str, module: _Module, node: ast.AST) -> Iterator[Definition]:
        """Yield the definitions that a node names."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield Definition(name, part.id)
            elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
                imported = module.imports.get(part.value.id)
                if imported is not None:
                    yield Definition(f"{imported.module}.{imported.name}", part.attr)

    def _is_excluded(self, name: str) -> bool:
        return any(name == each or name.startswith(f"{each}.") for each in self._excluded)

    def _module(self, name: str) -> _Module | None:
        """Return a module; None for a name that is none, or is of no package that counts."""
        if name not in self._modules:
            path = self._project / f"{name.replace('.', '/')}.py"
            counts = name.startswith(_PACKAGES) and path.is_file()
            self._modules[name] = _Module(ast.parse(path.read_text(encoding="utf-8"))) if counts else None
        return self._modules[name]


class _Module:
    """The definitions of a module, and what its names are that it imports."""

    def __init__(self, tree: ast.Module) -> None:
        self.definitions: dict[str, list[ast.stmt]] = {}
        for node in tree.body:
            for name in _defined_names(node):
                self.definitions.setdefault(name, []).append(node)
        self.imports = {
            alias.asname or alias.name: Definition(node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module is not None
            for alias in node.names
        }


def _defined_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]


def canonical_text(node: object) -> str:
    """Return a node of a syntax tree as text, without docstrings; the same in all versions of Python."""
    if isinstance(node, list):
        return f"[{' '.join(canonical_text(each) for each in node if not _is_docstring(each))}]"
    if isinstance(node, ast.Constant):
        return _constant_text(node.value)
    if isinstance(node, ast.JoinedStr):
        return f"(JoinedStr {' '.join(_parts_of_format(node))})"
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={canonical_text(value)}"
            for name, value in ast.iter_fields(node)
            if name not in _IGNORED_FIELDS and value is not None and value != []
        ]
        return f"({' '.join([type(node).__name__, *fields])})"
    return str(node)


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _constant_text(value: Any) -> str:  # noqa: ANN401 - of any type that has a literal
    return json.dumps(value) if isinstance(value, str) else value.hex() if isinstance(value, bytes) else repr(value)


def _parts_of_format(node: ast.JoinedStr) -> Iterator[str]:
    """Yield the parts of a format, with neighbouring texts as one: versions of Python cut these differently."""
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += part.value
            continue
        if text:
            yield json.dumps(text)
        text = ""
        yield canonical_text(part)
    if text:
        yield json.dumps(text)
