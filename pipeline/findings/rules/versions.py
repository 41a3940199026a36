"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "bfc8d8f243d8fe63"
SESSION_RULES: Final = "fac5bd80f6d0a60f"
CLONE_RULES: Final = "91054ec33ba983d7"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
