"""The PowerShell script that records on Windows: nothing here runs it; PowerShell parses it where it is installed."""

import re
import subprocess

import pytest

from udfs.capture.openings import TRIED_PORTS

PARSE = """
$errors = $null
[void] [System.Management.Automation.Language.Parser]::ParseFile($args[0], [ref] $null, [ref] $errors)
$errors | ForEach-Object { "$($_.Extent.StartLineNumber): $($_.Message)" }
exit $errors.Count
"""


@pytest.fixture
def script(project):
    return project / "conf" / "examples" / "capture-ring.ps1"


def test_it_says_first_that_it_was_not_run(script):
    assert script.read_text(encoding="utf-8").startswith("# Not run here: ")


def test_it_records_whole_packets_once_of_all_ports_of_message_queuing(script):
    text = script.read_text(encoding="utf-8")
    ports = {int(port) for port in re.search(r"^\$Ports = (.*)$", text, re.MULTILINE)[1].split(", ")}
    assert ports >= {135, *TRIED_PORTS}
    (start,) = re.findall(r"^ +pktmon start ((?:.*`\n)*.*)$", text, re.MULTILINE)
    assert "--pkt-size 0 " in start
    assert "--comp nics " in start


@pytest.mark.tool("pwsh")
def test_powershell_parses_it(script, tmp_path):
    parse = tmp_path / "parse.ps1"
    parse.write_text(PARSE, encoding="utf-8")
    line = ["pwsh", "-NoProfile", "-File", str(parse), str(script)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)
