"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "06a9b4014979a94d"
SESSION_RULES: Final = "60a919eec454b523"
CLONE_RULES: Final = "91054ec33ba983d7"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
