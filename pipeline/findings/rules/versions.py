"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "137fc78176cd069d"
SESSION_RULES: Final = "8f3989d795319526"
CLONE_RULES: Final = "a98008e589112e11"
SEQUENCE_RULES: Final = "821960cc94ac7a86"
