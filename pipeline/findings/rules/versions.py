"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "f9f3297a604ce6fc"
SESSION_RULES: Final = "28c6dacf3a17fdb8"
CLONE_RULES: Final = "91054ec33ba983d7"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
