"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "e7decfb39dfae0dd"
SESSION_RULES: Final = "6f7014de0c1c02b9"
CLONE_RULES: Final = "0905c5484224d87b"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
