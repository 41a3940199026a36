"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "a752c318658ebf65"
SESSION_RULES: Final = "b7ad3b6c26ab65fe"
CLONE_RULES: Final = "f67e4793609e57fa"
SEQUENCE_RULES: Final = "abf71f2ca3de1dfd"
