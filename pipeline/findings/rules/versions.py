"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "6cbe0169ba81dda7"
SESSION_RULES: Final = "f08f15b260ffa306"
CLONE_RULES: Final = "f67e4793609e57fa"
SEQUENCE_RULES: Final = "96f90d5f4ac99f58"
