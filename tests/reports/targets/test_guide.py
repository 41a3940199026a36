"""The target file that docs/guides/estate.md shows is one."""

import re

from pipeline.reports.targets.target_file import read_targets


def test_the_target_of_the_guide_is_read(project, tmp_path):
    guide = (project / "docs" / "guides" / "estate.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "own.yml").write_text(example)
    (target,) = read_targets([tmp_path / "own.yml"])
    assert target.facts.keys() == {"order", "message_bytes", "time_to_live"}
    assert all(fact.limit.source for fact in target.facts.values())
