"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "528b4eca7c287d72"
SESSION_RULES: Final = "7d6b02d6b26c64b3"
CLONE_RULES: Final = "85a3eb14fe50d6de"
SEQUENCE_RULES: Final = "528e0bb2fdc5d65f"
