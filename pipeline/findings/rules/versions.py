"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "90599a849c4cf9f9"
SESSION_RULES: Final = "e2c2e61b84f393ae"
CLONE_RULES: Final = "91054ec33ba983d7"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
