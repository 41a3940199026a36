"""The file of COM+ interfaces and classes: the documented one, and error messages for wrong ones."""

import re
from types import SimpleNamespace

import pyarrow as pa
import pytest

from comqc.helpers import IID, USER, Ndr, bstr, chdr, message, method, rows_of, safearray, secd
from jobs.config import Config, ConfigError
from jobs.ingest_captures import build_inline_decoders
from pipeline.settings import ComqcConfig
from pipeline.silver.declaration_file import DeclarationError, load_declarations
from udfs.comqc.body_decoder import decode_bodies
from udfs.comqc.declared_interfaces import NO_DECLARATIONS, PARAMETER_TYPES

HEAD = f"interfaces:\n- id: {IID}\n  methods:\n"
CLASS = f"classes:\n- id: {IID}\n  methods:\n"


@pytest.fixture
def load(tmp_path):
    def loaded(text):
        path = tmp_path / "interfaces.yml"
        path.write_text(text, encoding="utf-8")
        return load_declarations(path)

    return loaded


@pytest.fixture(scope="module")
def page(project):
    return (project / "docs" / "guides" / "com-plus-calls.md").read_text(encoding="utf-8")


def test_the_documented_file_gives_calls_their_names_and_arguments(load, page):
    declarations = load(re.search(r"```yaml\n(interfaces:.*?)```", page, re.DOTALL)[1])
    data = Ndr().put("i", 4711).put("I", USER)
    bstr("Contoso")(data)
    data.put("d", 40067.25).put("II", USER, USER)
    safearray(3, [7, 8], write=lambda ndr: ndr.put("ii", 7, 8), width=4)(data)
    body = message(chdr(), secd(), method(bytes(data.out), iid=IID, opnum=7), method(b"", iid=None, opnum=8))
    (row,) = rows_of(decode_bodies(pa.array([body]), declarations=declarations))
    assert [(call["interface_name"], call["method"], call["errors"]) for call in row["calls"]] == [
        ("IOrders", "Place", []), ("IOrders", "Close", []),
    ]  # fmt: skip
    named = zip(row["calls"][0]["argument_names"], row["calls"][0]["arguments"], strict=True)
    assert {name: (kind, value) for name, (_, kind, value) in named} == {
        "number": ("VT_I4", "4711"), "customer": ("VT_BSTR", "Contoso"), "due": ("VT_DATE", "2009-09-11T06:00:00"),
        "items": ("VT_ARRAY|VT_I4", "[7,8]"),
    }  # fmt: skip
    (desk,) = declarations.classes.values()
    assert (desk.name, desk.methods[1].name) == ("Orders.Desk", "Submit")
    assert [parameter.name for parameter in desk.methods[1].parameters] == ["order", "quantity"]


def test_the_page_lists_all_types(page):
    listed = set(re.findall(r"VT_\w+", page))
    assert listed - {"VT_ARRAY", "VT_"} == {name for name in PARAMETER_TYPES if "|" not in name} - {"VT_INT", "VT_UINT"}


def test_without_a_file_nothing_is_declared(load):
    assert load_declarations(None) == NO_DECLARATIONS
    assert load("interfaces: []\nclasses: []").fingerprint() is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": no declarations: expected a mapping of interfaces, classes"),
        ("[", ":1: not YAML"),
        ("- 1", ":1: the file: expected a mapping of interfaces, classes"),
        ("interface: []", ":1: the file: unknown name interface (there are interfaces, classes)"),
        ("interfaces:\n  id: 1", ":2: interfaces: expected a list"),
        ("interfaces:\n- id: x\n  methods: []", ":2: interfaces: id: expected a GUID, not 'x'"),
        ("interfaces:\n- methods: []", ":2: interfaces: id is missing"),
        (f"{HEAD}  - name: Place", f":4: interfaces: {IID}: opnum is missing"),
        (f"{HEAD}  - {{opnum: -1, name: a}}", f":4: interfaces: {IID}: opnum: expected a whole number from 0 to"),
        (f"{HEAD}  - {{dispatch_id: 1, name: a}}", f":4: interfaces: {IID}: unknown name dispatch_id"),
        (f"{HEAD}  - {{opnum: 3, name: a}}\n  - {{opnum: 0x3, name: b}}", ":5: interfaces: .*: opnum 3 appears twice"),
        (f"{HEAD}  - {{opnum: 3, opnum: 3, name: a}}", ":4: interfaces: .*: opnum appears twice"),
        (
            f"{HEAD}  - {{opnum: 3, name: a, parameters: [b]}}",
            ":4: .*: opnum 3: parameters: expected a mapping",
        ),
        (
            f"{HEAD}  - {{opnum: 3, name: a, parameters: [{{name: b, type: long}}]}}",
            r":4: .*: opnum 3: parameters: b: unknown type long \(there are VT_I2, .*VT_BSTR",
        ),
        (
            f"{HEAD}  - {{opnum: 3, name: a, parameters: [{{name: b c, type: VT_I4}}]}}",
            ":4: .*: name: expected a name of letters, digits and _, not 'b c'",
        ),
        (f"{CLASS}  - {{dispatch_id: 1, name: a, parameters: [b, b]}}", ":4: .*: dispatch_id 1: parameters: b appears"),
        (
            "interfaces:\n- id: '{00020400-0000-0000-C000-000000000046}'\n  methods: []",
            ": 00020400-0000-0000-c000-000000000046 is IDispatch: declare methods with a dispatch_id under classes",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(load, text, message):
    pattern = message if ".*" in message else re.escape(message)
    with pytest.raises(DeclarationError, match=rf"interfaces\.yml{pattern}"):
        load(text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DeclarationError, match=r"none\.yml: No such file"):
        load_declarations(tmp_path / "none.yml")


def test_a_job_refuses_a_wrong_file_before_it_reads_captures(tmp_path):
    (tmp_path / "interfaces.yml").write_text("interface: []", encoding="utf-8")
    config = Config(comqc=ComqcConfig(tmp_path / "interfaces.yml"))
    job_run = SimpleNamespace(config=config, arguments=SimpleNamespace(dry_run=True))
    with pytest.raises(ConfigError, match=r"interfaces\.yml:1: the file: unknown name interface"):
        build_inline_decoders(job_run, lake=None)
