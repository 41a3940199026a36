"""Write THIRD_PARTY_NOTICES.md: the licences of the packages of conf/requirements.txt and of Delta's jars.

Versions and licences are those of the installed packages' metadata.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from jobs.command_line.pinned_jars import pinned_jars

ROOT = Path(__file__).resolve().parents[1]
LONGEST_NAME = 60  # of a licence; a longer text is the licence itself
PRINTED = {"plotly.js": "plotly", "impacket": "impacket"}  # the package whose licence is printed whole
TEST_DATA = """\

## Test data

Part of the repository, with its licence; it is in no wheel and no page.

| Program | Version | Licence | Folder |
| --- | --- | --- | --- |
| Adaptive Cards, JSON schema | 1.5 | MIT | `tests/notices/forms` |
| axe-core | 4.14.1 | MPL-2.0 | `tests/dashboards/axe` |
"""
HEADER = """\
# Third-party notices

This project is licensed under the [Apache License 2.0](LICENSE). It uses the software below, which set-up installs and
which is not part of the repository, but for the test data below the jars. Each package contains its own licence. This
page is generated: `make notices-doc`.

The pages that `publish_dashboards` writes contain plotly.js, of the package plotly. The licence of impacket wants to be
shown with what uses it. Both are at the end.

`Wanted by` says which part of `pyproject.toml` names a package: `run` for every installation, `spark`, `connect` and
`dev` for the extras. A package without one is needed by others.

| Package | Version | Licence | Wanted by |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return the page."""
    wanted, lines = wanted_by(), []
    for name in locked_names():
        found = distribution(name)
        lines.append(f"| {name} | {found.version} | {licence(found)} | {', '.join(wanted.get(name, []))} |\n")
    delta = licence(distribution("delta-spark"))
    jars = "".join(f"| {jar} | {delta} |\n" for jar in pinned_jars())
    return (
        f"{HEADER}{''.join(lines)}\n## Jars\n\nPublished by the project of delta-spark, under the same licence.\n\n"
        f"| Jar | Licence |\n| --- | --- |\n{jars}{TEST_DATA}"
    ) + "".join(f"\n## {name}\n\n```\n{licence_text(package)}\n```\n" for name, package in PRINTED.items())


def locked_names() -> list[str]:
    """Return the names of the packages that set-up installs, as the lock spells them."""
    lock = (ROOT / "conf" / "requirements.txt").read_text(encoding="utf-8")
    return re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)


def wanted_by() -> dict[str, list[str]]:
    """Return the parts of pyproject.toml that name each package, by its canonical name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    out: dict[str, list[str]] = {}
    for part, requirements in {"run": project["dependencies"], **project["optional-dependencies"]}.items():
        for requirement in requirements:
            name = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()
            out.setdefault(name, []).append(part)
    return out


def licence(package: Distribution) -> str:
    """Return the name of a package's licence: its expression, else its classifiers, else a short text."""
    metadata = package.metadata
    classified = [each for each in metadata.get_all("Classifier") or [] if each.startswith("License")]
    text = (metadata.get("License") or "").strip()
    return (
        metadata.get("License-Expression")
        or ", ".join(each.rpartition(":: ")[2] for each in classified)
        or (text if 0 < len(text) <= LONGEST_NAME and "\n" not in text else "the package's own text")
    )


def licence_text(name: str) -> str:
    """Return the licence that a package contains."""
    texts = [path.read_text(encoding="utf-8") for path in _licence_files(distribution(name))]
    return "\n".join(texts).strip()


def _licence_files(package: Distribution) -> Iterator[Path]:
    for file in package.files or ():
        if re.fullmatch(r"LICENSE(\.\w+)?", file.name) and ".dist-info" in str(file):
            yield Path(str(file.locate()))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
