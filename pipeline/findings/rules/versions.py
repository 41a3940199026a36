"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "763eb1a0744cd62c"
SESSION_RULES: Final = "c3ead9d9e8526041"
CLONE_RULES: Final = "f66c85b6ec7feb5e"
SEQUENCE_RULES: Final = "086ad732a274983d"
