"""What users declare of recorded COM+ calls: the methods of interfaces and classes, with their parameters.

[MC-COMQC] bodies name a method by its interface and opnum, or by its class and dispatch id, and do not say what its
parameters are. Declarations do (the setting ``comqc.interfaces``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from udfs.comqc import variant_text
from udfs.comqc.variant_text import VT_ARRAY, variant_type_name
from udfs.keys import key

_FIXED_SIZE_TYPES: Final = [vt for vt, size in variant_text.VALUE_SIZES.items() if size]
_ELEMENT_TYPES: Final = [*_FIXED_SIZE_TYPES, variant_text.VT_BSTR, variant_text.VT_VARIANT]
_SINGLE_TYPES: Final = [*_ELEMENT_TYPES, variant_text.VT_DISPATCH, variant_text.VT_UNKNOWN]
PARAMETER_TYPES: Final = {
    variant_type_name(vt): vt for vt in (*sorted(_SINGLE_TYPES), *(VT_ARRAY | vt for vt in sorted(_ELEMENT_TYPES)))
}
"""The types that a parameter can have, by the names that ``comqc_calls.arguments`` shows."""

_DISPID_PROPERTYPUT: Final = -3


class DeclaredParameter(NamedTuple):
    """A parameter: its name, and its VARIANT type; a dispatch call says the types itself (None)."""

    name: str
    vt: int | None = None


class DeclaredMethod(NamedTuple):
    """A method: its name, and its [in] parameters in the order of the IDL."""

    name: str
    parameters: tuple[DeclaredParameter, ...] = ()


class DeclaredInterface(NamedTuple):
    """An interface or a class: its name, and its methods by opnum or dispatch id."""

    name: str | None
    methods: Mapping[int, DeclaredMethod]


class Declarations(NamedTuple):
    """Interfaces by interface id, whose methods have opnums, and classes by class id, whose methods have dispatch ids.

    Ids are GUIDs in lower case without braces.
    """

    interfaces: Mapping[str, DeclaredInterface]
    classes: Mapping[str, DeclaredInterface]

    def fingerprint(self) -> str | None:
        """Return a text that differs where calls are decoded differently; None without any declaration."""
        return key(json.dumps(self, sort_keys=True)) if self.interfaces or self.classes else None


NO_DECLARATIONS: Final = Declarations({}, {})


def argument_names(method: DeclaredMethod, count: int, named_dispatch_ids: Sequence[int]) -> list[str | None]:
    """Return the names of the ``count`` arguments of a dispatch call, in the order of ``comqc_calls.arguments``.

    Named arguments are the last ones, in reverse order; their dispatch ids are the numbers of parameters, from 0. The
    value of a property put is the parameter at its place. None for arguments that are not declared.
    """
    names = [parameter.name for parameter in method.parameters]
    places = list(range(count))
    for number, dispatch_id in enumerate(named_dispatch_ids):
        if dispatch_id != _DISPID_PROPERTYPUT:
            places[count - 1 - number] = dispatch_id
    return [names[place] if 0 <= place < len(names) else None for place in places]
