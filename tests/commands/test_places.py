"""Every job takes the same forms of a place: a path, a relative one, and the same as a file: URI."""

import os
from pathlib import Path

import pytest

from jobs.command_line.parsers import build_parser, list_jobs
from pipeline.bronze.input_files import InputError, is_pipe, ledger_path, list_files
from pipeline.local_paths import local_path

FORMS = {
    "/data/my lake": "/data/my lake",
    "lake": "lake",
    "./10:15/lake": "./10:15/lake",
    "file:///data/my%20lake": "/data/my lake",
    "file:///data/my lake": "/data/my lake",
    "file:/data/lake": "/data/lake",
    "file://localhost/data/lake": "/data/lake",
    "FILE:///data/lake": "/data/lake",
    "file:lake": "lake",
    "file:///data/%FF": "/data/\udcff",
}
NOT_HERE = {
    "hdfs://name:8020/lake": "not a place on this machine",
    "dbfs:/lake": "not a place on this machine",
    "file://server/lake": "server is another machine",
    "": "an empty text is no path",
}
ON_S3 = {"s3://bucket/my lake/": "s3://bucket/my lake", "s3a://bucket": "s3://bucket", "s3n://b/c/d": "s3://b/c/d"}
NOT_ON_S3 = {  # nor on this machine
    "s3://user:secret@bucket/lake": "s3://...@bucket/lake: ",
    "s3:///lake": "s3:///lake: ",
    "s3:/lake": "s3:/lake: ",
    "s3://buck*t/lake": "s3://buck*t/lake: ",
    "s3://bucket/a/../b": "s3://bucket/a/../b: ",
    "s3://bucket//lake": "s3://bucket//lake: ",
}
INPUTS = ("captures", "snapshots")  # these may also be on an object store: tests/bronze/stores


def places():
    """Return each job with each of its options that take a file or a folder."""
    return [
        pytest.param(job, action.option_strings[0], id=f"{job} {action.option_strings[0]}")
        for job in list_jobs()
        for action in build_parser(job)._actions
        if action.metavar in ("FILE", "FOLDER", "DIR", "URI") and action.dest not in INPUTS
    ]


def parse(job, option, place):
    """Parse one option of a job alone."""
    parser = build_parser(job)
    for action in parser._actions:
        action.required = False
    found = getattr(parser.parse_args([f"{option}={place}"]), option.strip("-").replace("-", "_"))
    return found[0] if isinstance(found, list) else found


def test_every_job_is_in_the_table():
    assert {each.values[0] for each in places()} == set(list_jobs())
    lakes = {each.values[0] for each in places() if each.values[1] == "--lake"}
    assert lakes == set(list_jobs()) - {"collect_snapshots", "wireshark"}


@pytest.mark.parametrize(("job", "option"), places())
def test_every_job_takes_every_form(job, option, capsys):
    assert {form: parse(job, option, form) for form in FORMS} == FORMS
    if option == "--lake":
        assert {place: parse(job, option, place) for place in ON_S3} == ON_S3
    here = {place: f"{text}not a place on this machine" for place, text in NOT_ON_S3.items() if place[:5] == "s3://"}
    for place, complaint in (NOT_HERE | (NOT_ON_S3 if option == "--lake" else here)).items():
        with pytest.raises(SystemExit) as stop:
            parse(job, option, place)
        message = capsys.readouterr().err
        assert (stop.value.code, message.count("\n")) == (2, 1)
        assert message.startswith(f"{job}: argument {option}: ")
        assert complaint in message
        assert "secret" not in message


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_inputs_are_listed_by_every_form(form, tmp_path):
    path = tmp_path / "50%41" / "a b.pcap"
    path.parent.mkdir()
    path.write_bytes(b"123")
    place = str(path) if form == "{}" else str(path).replace("%", "%25").replace(" ", "%20")
    assert [(file.path, file.size) for file in list_files([form.format(place)])] == [(str(path), 3)]
    assert ledger_path(form.format(place)) == str(path)


def test_an_input_of_another_machine_is_one_line():
    with pytest.raises(InputError, match="server is another machine"):
        list_files(["file://server/ring"])


def test_a_pipe_is_found_by_every_form(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert is_pipe(str(tmp_path / "pipe"))
    assert is_pipe(f"file://{tmp_path}/pipe")
    assert not is_pipe("s3://bucket/pipe")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("/ring/a.pcap", "/ring/a.pcap"),
        ("file:///ring/a.pcap", "/ring/a.pcap"),
        ("a.pcap", str(Path("a.pcap").absolute())),
        ("s3a://bucket/a.pcap", "s3://bucket/a.pcap"),
        ("0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"),
    ],
)
def test_a_capture_to_read_again_is_named_by_every_form(given, named):
    assert build_parser("run_all").parse_args(["--lake=x", f"--reprocess=capture={given}"]).reprocess.capture == named


def test_a_path_stays_what_it_is():
    for path in ("/a%20b", "a:b", "a", "-", "{{secrets/scope/key}}"):
        assert local_path(path) == path


def test_a_capture_of_another_machine_cannot_be_read_again(capsys):
    with pytest.raises(SystemExit):
        build_parser("run_all").parse_args(["--lake=x", "--reprocess=capture=file://server/a.pcap"])
    assert "argument --reprocess: file://server/a.pcap: server is another machine" in capsys.readouterr().err
