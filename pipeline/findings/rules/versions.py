"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "e7decfb39dfae0dd"
SESSION_RULES: Final = "6a659138e871321d"
CLONE_RULES: Final = "8d4919165eab6b82"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
