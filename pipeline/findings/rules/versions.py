"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "aeea35552a972b74"
SESSION_RULES: Final = "f1abd76299edb7ec"
CLONE_RULES: Final = "91054ec33ba983d7"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
