"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "68083efd44f57229"
SESSION_RULES: Final = "a5c41d5d74b6c247"
CLONE_RULES: Final = "a5ba733c4435d68c"
SEQUENCE_RULES: Final = "821960cc94ac7a86"
