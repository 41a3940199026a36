"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "e7decfb39dfae0dd"
SESSION_RULES: Final = "5dc71b306be53f94"
HOP_RULES: Final = "f47054c743d19b5f"
CLONE_RULES: Final = "062bad9ae2245827"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
