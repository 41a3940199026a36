"""The file of names of machines: what it may hold, and errors with their line."""

from __future__ import annotations

import pytest

from pipeline.silver.declaration_file import DeclarationError
from pipeline.silver.declared_machines import load_declared_machines
from pipeline.silver.machine_names import NameSighting, NameSource

GUID = "6b9f3e0a-0f52-4d4a-9a0b-0d1a5b6c7d8e"
HEADER = "address,queue_manager_id,name\n"


@pytest.fixture
def written(tmp_path):
    def write(text):
        path = tmp_path / "machines.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_names_by_address_and_identifier(written):
    text = f'\ufeffname, address,queue_manager_id\r\nTill 7,10.0.0.7,\r\n\r\n"Orders, old",,{{{GUID.upper()}}}\r\n'
    text += f"Orders,FD00::7,{GUID}\r\nTill 7,10.0.0.8,\r\n"
    assert load_declared_machines(written(text)) == (
        NameSighting(NameSource.DECLARED, "10.0.0.7", None, "Till 7"),
        NameSighting(NameSource.DECLARED, None, GUID, "Orders, old"),
        NameSighting(NameSource.DECLARED, "fd00::7", GUID, "Orders"),
        NameSighting(NameSource.DECLARED, "10.0.0.8", None, "Till 7"),
    )


def test_the_example_is_valid(project):
    names = [seen.name for seen in load_declared_machines(project / "conf" / "examples" / "machines.csv")]
    assert names == ["Till 7", "Orders", "Head office"]


def test_no_file_declares_nothing():
    assert load_declared_machines(None) == ()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "the first line must name the columns: address,queue_manager_id,name"),
        ("10.0.0.7,,srv-secret\n", 1, "the first line must name the columns: address,queue_manager_id,name"),
        (HEADER + "10.0.0.7,,\n", 2, "name is missing"),
        (HEADER + "\n,,srv-secret\n", 3, "give the address, the queue_manager_id, or both"),
        (HEADER + "srv-secret,,srv-secret\n", 2, "address: expected an IP address"),
        (HEADER + ",srv-secret,srv-secret\n", 2, "queue_manager_id: expected a GUID"),
        (HEADER + "10.0.0.7,srv-secret\n", 2, "expected 3 values: put a value with a comma in quotation marks"),
        (HEADER + "10.0.0.7,,srv-secret,1\n", 2, "expected 3 values: put a value with a comma in quotation marks"),
        (
            HEADER + "::ffff,,srv-secret\n0::ffff,,other-secret\n", 3,
            "the address of line 2 again: give each address one name",
        ),
        (HEADER.encode() + b"10.0.0.7,,srv-secret\xff\n", 1, "not UTF-8 text: save the file as CSV in UTF-8"),
    ],
)  # fmt: skip
def test_an_error_names_the_line_and_no_value(written, text, line, message):
    path = written(text)
    with pytest.raises(DeclarationError) as error:
        load_declared_machines(path)
    assert str(error.value) == f"{path}:{line}: {message}"
    assert "secret" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DeclarationError, match=r"none\.csv: No such file"):
        load_declared_machines(tmp_path / "none.csv")
