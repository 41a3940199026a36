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
from typing import Final
from uuid import UUID

import yaml

from pipeline.yaml_file import YamlFile
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


class DeclarationError(Exception):
    """An invalid file; the message has the file, the line, and the reason."""


def load_declarations(path: Path | None) -> Declarations:
    """Read the declarations of a file, nothing without one; DeclarationError says what is wrong, with file and line."""
    if path is None:
        return NO_DECLARATIONS
    file = _DeclarationFile(path, DeclarationError)
    root = file.root()
    if root is None:
        raise DeclarationError(f"{path}: no declarations: expected a mapping of interfaces, classes")
    sections = file.fields(root, "the file", optional=("interfaces", "classes"))
    found = Declarations(
        file.interfaces(sections.get("interfaces"), "interfaces", "opnum", file.typed_parameter),
        file.interfaces(sections.get("classes"), "classes", "dispatch_id", file.named_parameter),
    )
    if _DISPATCH in found.interfaces:
        raise DeclarationError(f"{path}: {_DISPATCH} is IDispatch: declare methods with a dispatch_id under classes")
    return found


class _DeclarationFile(YamlFile):
    """Reads the nodes of a file of declarations."""

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
