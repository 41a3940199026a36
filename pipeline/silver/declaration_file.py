"""File of COM+ interfaces and classes (the setting ``comqc.interfaces``): read declarations of methods from YAML.

``interfaces`` is a list of ``id`` (interface id), ``name`` and ``methods``: of each the ``opnum``, ``name`` and
``parameters``, a list of ``name`` and ``type``. ``classes`` is a list of ``id`` (class id), ``name`` and ``methods``:
of each the ``dispatch_id``, ``name`` and ``parameters``, a list of names. Names of interfaces and classes may be left
out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar
from uuid import UUID

import yaml

from udfs.comqc.container_layout import IID_IDISPATCH
from udfs.comqc.declared_interfaces import (
    NO_DECLARATIONS,
    PARAMETER_TYPES,
    Declarations,
    DeclaredInterface,
    DeclaredMethod,
    DeclaredParameter,
)

__all__ = ["DeclarationError", "Declarations", "load_declarations"]

_NAME: Final = re.compile(r"[^\W\d]\w*")
_DISPATCH: Final = str(UUID(bytes_le=IID_IDISPATCH))
_MAX_OPNUM: Final = (1 << 31) - 1
_Value = TypeVar("_Value")


class DeclarationError(Exception):
    """An invalid file; the message has the file, the line, and the reason."""


def load_declarations(path: Path | None) -> Declarations:
    """Read the declarations of a file, nothing without one; DeclarationError says what is wrong, with file and line."""
    if path is None:
        return NO_DECLARATIONS
    root = _read_yaml(path)
    if root is None:
        raise DeclarationError(f"{path}: no declarations: expected a mapping of interfaces, classes")
    file = _DeclarationFile(str(path))
    sections = file.fields(root, "the file", optional=("interfaces", "classes"))
    found = Declarations(
        file.interfaces(sections.get("interfaces"), "interfaces", "opnum", file.typed_parameter),
        file.interfaces(sections.get("classes"), "classes", "dispatch_id", file.named_parameter),
    )
    if _DISPATCH in found.interfaces:
        raise DeclarationError(f"{path}: {_DISPATCH} is IDispatch: declare methods with a dispatch_id under classes")
    return found


def _read_yaml(path: Path) -> yaml.Node | None:
    try:
        return yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DeclarationError(f"{path}{line}: not YAML: {error.problem}") from error
    except OSError as error:
        raise DeclarationError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise DeclarationError(f"{path}: not YAML: {' '.join(str(error).split())}") from error


class _DeclarationFile:
    """Reads the nodes of a file; every error names its line."""

    def __init__(self, path: str) -> None:
        self.path = path

    def error(self, node: yaml.Node, message: str) -> DeclarationError:
        return DeclarationError(f"{self.path}:{node.start_mark.line + 1}: {message}")

    def fields(
        self, node: yaml.Node, what: str, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()
    ) -> dict[str, yaml.Node]:
        """Return the entries of a mapping by name."""
        names = ", ".join((*required, *optional))
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, f"{what}: expected a mapping of {names}")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if key.value not in (*required, *optional):
                raise self.error(key, f"{what}: unknown name {key.value} (there are {names})")
            if key.value in found:
                raise self.error(key, f"{what}: {key.value} appears twice")
            found[key.value] = value
        if missing := [name for name in required if name not in found]:
            raise self.error(node, f"{what}: {missing[0]} is missing")
        return found

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

    def text(self, node: yaml.Node, what: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self.error(node, f"{what}: expected text")
        return str(node.value)

    def name(self, node: yaml.Node, what: str) -> str:
        text = self.text(node, what)
        if not _NAME.fullmatch(text):
            raise self.error(node, f"{what}: expected a name of letters, digits and _, not {text!r}")
        return text

    def number(self, node: yaml.Node, what: str, lowest: int, highest: int) -> int:
        text = self.text(node, what)
        try:
            number = int(text, 0)
        except ValueError:
            number = highest + 1
        if not lowest <= number <= highest:
            raise self.error(node, f"{what}: expected a whole number from {lowest} to {highest}, not {text!r}")
        return number

    def guid(self, node: yaml.Node, what: str) -> str:
        text = self.text(node, what)
        try:
            return str(UUID(text))
        except ValueError:
            raise self.error(node, f"{what}: expected a GUID, not {text!r}") from None

    def interfaces(
        self,
        node: yaml.Node | None,
        section: str,
        number_name: str,
        read_parameter: Callable[[yaml.Node, str], tuple[DeclaredParameter, object]],
    ) -> Mapping[str, DeclaredInterface]:
        """Return the interfaces or classes of a section by id; ``number_name`` is what identifies their methods."""

        def read_method(entry: yaml.Node, what: str) -> tuple[tuple[int, DeclaredMethod], object]:
            values = self.fields(entry, what, (number_name, "name"), ("parameters",))
            lowest = 0 if number_name == "opnum" else -_MAX_OPNUM - 1
            number = self.number(values[number_name], f"{what}: {number_name}", lowest, _MAX_OPNUM)
            place = f"{what}: {number_name} {number}"
            parameters = self.entries(values.get("parameters"), f"{place}: parameters", read_parameter)
            name = self.text(values["name"], f"{place}: name")
            return (number, DeclaredMethod(name, tuple(parameters))), f"{number_name} {number}"

        def read_interface(entry: yaml.Node, what: str) -> tuple[tuple[str, DeclaredInterface], object]:
            values = self.fields(entry, what, ("id", "methods"), ("name",))
            identifier = self.guid(values["id"], f"{what}: id")
            name = self.text(values["name"], f"{what}: name") if "name" in values else None
            methods = self.entries(values["methods"], f"{section}: {name or identifier}", read_method)
            return (identifier, DeclaredInterface(name, dict(methods))), identifier

        return dict(self.entries(node, section, read_interface))

    def typed_parameter(self, entry: yaml.Node, what: str) -> tuple[DeclaredParameter, object]:
        """Read a parameter of a method that is called by its opnum."""
        values = self.fields(entry, what, ("name", "type"))
        name, kind = self.name(values["name"], f"{what}: name"), self.text(values["type"], f"{what}: type")
        if kind not in PARAMETER_TYPES:
            known = ", ".join(each for each in PARAMETER_TYPES if "|" not in each)
            message = f"{what}: {name}: unknown type {kind} (there are {known}, VT_ARRAY|VT_...)"
            raise self.error(values["type"], message)
        return DeclaredParameter(name, PARAMETER_TYPES[kind]), name

    def named_parameter(self, entry: yaml.Node, what: str) -> tuple[DeclaredParameter, object]:
        """Read a parameter of a method that is called by its dispatch id: the calls say the types."""
        name = self.name(entry, what)
        return DeclaredParameter(name), name
