"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "653e34aafcb244cd"
SESSION_RULES: Final = "0a1ad0a04b1ff148"
CLONE_RULES: Final = "bcdf40d79733eff8"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
