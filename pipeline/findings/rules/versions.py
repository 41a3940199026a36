"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "f5fcf5576d850ca9"
SESSION_RULES: Final = "fac75b59b4caa8d8"
CLONE_RULES: Final = "6ec755acc1b526e1"
SEQUENCE_RULES: Final = "dd362c91b08966b6"
