"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "e7decfb39dfae0dd"
SESSION_RULES: Final = "5dc71b306be53f94"
HOP_RULES: Final = "e36c935512544db7"
CLONE_RULES: Final = "df89fd4111bebc2f"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
