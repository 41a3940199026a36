"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "e7decfb39dfae0dd"
SESSION_RULES: Final = "fa3faa25bf4e7072"
CLONE_RULES: Final = "48b7ed9eb41a4980"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
