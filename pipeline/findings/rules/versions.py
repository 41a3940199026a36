"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "30e8744338f78fc9"
SESSION_RULES: Final = "840e22cdfc415920"
CLONE_RULES: Final = "f66c85b6ec7feb5e"
SEQUENCE_RULES: Final = "086ad732a274983d"
