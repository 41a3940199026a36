"""msmq show_message: headers, the application's headers and the body, from the lake or from the capture."""

import shutil

import pytest

import framework_messages as written
from application import recorded
from application.test_tables import ALL, KEY, ingest
from engines import without_spark
from jobs import show_message
from pipeline.lake.lake import Lake
from pipeline.reports.shown_message.bodies import FoundBody
from pipeline.reports.shown_message.formatting import format_list, format_message
from pipeline.reports.shown_message.indentation import hex_lines, indent_json, indent_xml
from pipeline.reports.shown_message.inputs import ListedMessage, Sighting
from privacy.redaction.test_lake import EVERYTHING
from reports.questions.in_memory_lake import rows
from schemas.messages import APPLICATION_COLUMNS, MESSAGES

BODIES = {label: body for label, _, body, _ in recorded.MESSAGES}
NOT_STORED = ("store.stubs=false", "store.application_headers=none")
XML = ['    <OrderPlaced xmlns="http://tempuri.net/Sales">', "      <Id>4711</Id>", "    </OrderPlaced>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Lakes of one capture: one with bodies, one with stubs alone, one with neither; and the capture."""
    folder = tmp_path_factory.mktemp("shown")
    capture = folder / "frameworks.pcap"
    capture.write_bytes(recorded.capture())
    for name, settings in (("bodies", ("store.bodies=true", *ALL)), ("stubs", ()), ("neither", NOT_STORED)):
        ingest(capture, folder / name, *settings)
    return folder


@pytest.fixture
def show(folder, capsys):
    def show(lake, *asked, code=0):
        assert show_message.main(["--lake", str(folder / lake), *asked]) == code
        found = capsys.readouterr()
        return found.out if code in (0, 5) else found.err

    return show


def body_part(text):
    """The lines of the body, and where it says that it is from."""
    lines = text.splitlines()
    (place,) = [number for number, line in enumerate(lines) if line.startswith("  body    ")]
    return lines[place], lines[place + 1 : -1]  # the last line is the job's summary


@pytest.mark.parametrize(
    ("lake", "source"),
    [
        ("bodies", "in the lake, silver.messages.body"),
        ("stubs", "in the lake, bronze.rpc_calls.response_stub"),
        ("neither", "from the capture {}/frameworks.pcap"),
    ],
)
def test_a_message_says_where_its_body_is_from(show, folder, lake, source):
    text = show(lake, "--label", "nservicebus")
    where, lines = body_part(text)
    assert where == f"  body    94 bytes, {source.format(folder)}"
    assert lines[-3:] == XML
    assert "\n    destination_queue          srv1\\private$\\orders\n" in text
    assert "\n    exception_message       No answer of <card 4711>\n" in text
    for name, value in recorded.FAILED.items():  # all headers, whatever the lake keeps of them
        assert f"{name} " in text
        assert value in text
    headings = {"bodies": "silver.messages.extension and silver.messages.application_headers"}
    assert f"\n  application's headers, of {headings.get(lake, 'silver.messages.extension')}\n" in text


@pytest.mark.parametrize(
    ("lake", "label"),
    [*(("neither", label) for label, body in BODIES.items() if body), ("bodies", "nrbf"), ("stubs", "nrbf")],
)
def test_the_bytes_of_a_body_are_written(show, tmp_path, lake, label):
    show(lake, "--label", label, "--raw", str(tmp_path / "body"))
    assert (tmp_path / "body").read_bytes() == BODIES[label]


def test_bodies_are_laid_out_by_their_form(show):
    assert body_part(show("stubs", "--label", "rebus"))[1] == ["    {", '      "card": "card 4711"', "    }"]
    assert body_part(show("stubs", "--label", "variant"))[1] == ["    card 4711"]
    assert body_part(show("stubs", "--label", "cut"))[1] == ["    00000000  01 02 03 04" + 38 * " " + "...."]
    assert body_part(show("stubs", "--label", "wcf"))[1][0].startswith("    00000000  00 01 00 01 04 02 1f 6e 65 74 ")
    where, lines = body_part(show("stubs", "--label", "nothing"))
    assert (where, lines) == ("  body    it is empty", [])


def test_a_message_of_tcp_1801_is_read_from_its_capture_too(folder, tmp_path):
    """Each sighting by its own key: a packet of TCP 1801, and the response of a call."""
    lake = Lake(without_spark(), str(folder / "neither"))
    sightings = lake.query("SELECT sighting_key, packet_key IS NOT NULL AS sent, label FROM {m}", m=MESSAGES)
    wanted = [row for row in sightings.to_pylist() if row["label"] == "mass transit"]
    assert {row["sent"] for row in wanted} == {True, False}
    for row in wanted:
        out = tmp_path / "body"
        asked = [row["sighting_key"], "--raw", str(out)]
        assert show_message.main(["--lake", str(folder / "neither"), *asked]) == 0
        assert out.read_bytes() == written.json_envelope()
        out.unlink()


def test_several_are_a_list_and_one_is_picked_by_its_key(show, tmp_path):
    listed = [line.split() for line in show("stubs", "--label", "n").splitlines()]
    keys = [words[-1] for words in listed if len(words) > 3 and words[2] == "nservicebus"]
    assert len(keys) == 1
    assert "label                      nservicebus" in show("stubs", keys[0])
    refused = show("stubs", "--label", "n", "--raw", str(tmp_path / "body"), code=2)
    assert "messages match; give the key of one" in refused
    assert not (tmp_path / "body").exists()


def test_a_message_is_found_by_its_own_id_and_by_the_applications(show):
    by_id = show("stubs", "--application-id", written.REBUS_HEADERS["rbs2-msg-id"].upper())
    assert "\n    label                      rebus\n" in by_id
    message_id = by_id.splitlines()[0].split()[-1]
    assert body_part(show("stubs", message_id)) == body_part(by_id)
    assert '"found": 0' in show("stubs", "--application-id", "none", code=5)


@pytest.mark.parametrize("asked", [[], [""], ["key", "--label", "x"], ["--label", ""]])
def test_one_thing_is_asked_for(show, asked):
    assert "which message? Give one of KEY, --label and --application-id" in show("stubs", *asked, code=2)


def test_a_body_that_is_nowhere_is_said(show, folder, tmp_path):
    for label in ("nservicebus", "wcf"):
        hidden = shutil.move(folder / "frameworks.pcap", tmp_path / "elsewhere.pcap")
        try:
            where, lines = body_part(show("neither", "--label", label))
            assert where.partition("bytes, ")[2].startswith("not in the lake, and not found in ")
            assert "frameworks.pcap" in where
            assert lines == []
            assert "no body to write: not in the lake" in show(
                "neither", "--label", label, "--raw", str(tmp_path / "body"), code=2
            )
            (folder / "frameworks.pcap").write_bytes(b"another file of this name")
            assert body_part(show("neither", "--label", label))[1] == []
        finally:
            shutil.move(hidden, folder / "frameworks.pcap")
    assert not (tmp_path / "body").exists()


def test_the_body_does_not_replace_what_jobs_read(show, folder):
    refused = show("stubs", "--label", "xml", "--raw", str(folder / "frameworks.pcap"), code=2)
    assert "which jobs read; choose another name" in refused


def test_a_redacted_lake_has_nothing_to_show(folder, tmp_path, capsys):
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    settings = (EVERYTHING, f"privacy.scratch_folder={tmp_path / 'work'}")
    ingest(folder / "frameworks.pcap", tmp_path / "redacted", *settings, more=("--redact-key", str(key)))
    assert show_message.main(["--lake", str(tmp_path / "redacted"), "--label", "x"]) == 2
    assert "names are redacted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("<a><b>1</b><c/></a>", ["<a>", "  <b>1</b>", "  <c/>", "</a>"]),
        ("<a x='1>2'> \n <!-- n > 1 --><b></b>t</a>", ["<a x='1>2'>", "  <!-- n > 1 -->", "  <b></b>", "  t", "</a>"]),
        ("<a>one<b>two</b></a>", ["<a>", "  one", "  <b>two</b>", "</a>"]),
        ("<a><![CDATA[<b>]]></a><a", ["<a>", "  <![CDATA[<b>]]>", "</a>", "<a"]),
        ("<a><b>cut", ["<a>", "  <b>", "    cut"]),
        ("</a></a>x", ["</a>", "</a>", "x"]),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", ["<!DOCTYPE a [", "<!ENTITY b 'c'>", "]>", "<a>&b;</a>"]),
        ("<!-- no end <a>", ["<!-- no end <a>"]),
        ("", []),
    ],
)
def test_xml_is_indented_and_nothing_is_lost_or_expanded(text, lines):
    assert list(indent_xml(text)) == lines
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"a":1.10,"a":[],"b":[{},"x y\\""]}',
         ["{", '  "a": 1.10,', '  "a": [],', '  "b": [', "    {},", '    "x y\\""', "  ]", "}"]),
        ("[1,\n2", ["[", "  1,", "  2"]),
        ('{"a": "cut', ["{", '  "a": "cut']),
        ("]}tru e", ["]", "}tru e"]),
        ("{} {}", ["{}{}"]),
        ("", []),
    ],
)  # fmt: skip
def test_json_is_indented_and_nothing_is_lost(text, lines):
    assert list(indent_json(text)) == lines
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize("part", ["<a ", "<a>", "<!--", "<a '", '"\\', "[", "{", "<![CDATA[", "<?"])
def test_hostile_bodies_are_laid_out_in_linear_time(part):
    text = part * ((1 << 16) // len(part))
    lines = [*indent_xml(text), *indent_json(text)]
    assert sum(map(len, lines)) <= 66 * 2 * len(text)


def test_bytes_are_shown_in_hex():
    assert list(hex_lines(bytes(range(60, 80)))) == [
        "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  <=>?@ABCDEFGHIJK",
        "00000010  4c 4d 4e 4f                                      LMNO",
    ]


def shown(body, body_format, body_type=0, **more):
    """The lines of the body of a message that says so; the body is in the lake."""
    given = {"message_key": "k", "body_bytes": len(body), "body_bytes_seen": len(body), "body_type": body_type} | more
    (row,) = rows(MESSAGES, given).to_pylist()
    application = {column.name: None for column in APPLICATION_COLUMNS} | {"body_format": body_format}
    lines = list(format_message(Sighting(row, None, None), application, FoundBody(body, "here"), sightings=1))
    return lines[lines.index(f"  body    {len(body)} bytes, here") + 1 :]


@pytest.mark.parametrize(
    ("body", "body_format", "lines"),
    [
        ("\x1b[2Jone\r\ntwo\tü\u202e".encode(), "text", ["    <U+001B>[2Jone", "    two ü<U+202E>"]),
        (b'{"a":"\x1b"}', "json", ["    {", '      "a": "<U+001B>"', "    }"]),
        ("\ufeff<a>ü</a>".encode("utf-16-le"), "xml", ["    <a>ü</a>"]),
        ("<?xml version='1.0' encoding='iso-8859-1'?><a>ü</a>".encode("latin-1"), "xml",
         ["    <?xml version='1.0' encoding='iso-8859-1'?>", "    <a>ü</a>"]),
        *((f"<?xml version='1.0' encoding='{name}'?><a>\xff</a>".encode("latin-1"), "xml",
           [f"    <?xml version='1.0' encoding='{name}'?>", "    <a>\ufffd</a>"])
          for name in ("zip", "bz2", "punycode", "undefined", "iso-8859-99", "utf-8")),
        (written.datagram(3, b"<e><b>1</b></e>"), "soap",
         ["    (40 bytes of framing before the envelope)", "    <e>", "      <b>1</b>", "    </e>"]),
        (b"\x1f\x8b\x08abc", "gzip", ["    00000000  1f 8b 08 61 62 63" + 32 * " " + "...abc"]),
    ],
)  # fmt: skip
def test_bodies_are_text_that_is_safe_to_print(body, body_format, lines):
    assert shown(body, body_format) == lines


def test_of_a_large_body_the_beginning_is_printed_and_of_one_that_is_cut_what_is_missing_said():
    lines = shown(b"x" * 70_000, "text", body_bytes_seen=70_000)
    assert lines == [f"    {'x' * (1 << 16)}", f"    ... (+{70_000 - (1 << 16)} bytes; --raw FILE writes all)"]
    (row,) = rows(MESSAGES, {"message_key": "k", "body_bytes": 9, "body_bytes_seen": 2, "body_type": 0}).to_pylist()
    nothing = {column.name: None for column in APPLICATION_COLUMNS}
    cut = list(format_message(Sighting(row, None, None), nothing, FoundBody(b"ab", "here"), sightings=1))
    assert cut[-1] == "    ... (7 bytes of it were not captured)"


def test_hostile_texts_are_escaped():
    hostile = "\x1b[2J\u202e"
    (row,) = rows(MESSAGES, {"message_key": "k", "label": hostile, "seen_in": "RemoteRead"}).to_pylist()
    said = {column.name: None for column in APPLICATION_COLUMNS}
    said |= {"framework": "Rebus", "sent_types": [hostile], "application_headers": {hostile: f"{hostile}\n{hostile}"}}
    sighting = Sighting(row, f"/{hostile}", 1)
    lines = [*format_message(sighting, said, FoundBody(None, f"not in /{hostile}"), sightings=2)]
    lines += format_list([ListedMessage(None, hostile, hostile, hostile, 1, "k")])
    assert "".join(lines).isprintable()
