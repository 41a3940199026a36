"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "6575717cf58db8ce"
SESSION_RULES: Final = "87810b534a7dcd46"
CLONE_RULES: Final = "af606c1c5ecdfe0b"
SEQUENCE_RULES: Final = "821960cc94ac7a86"
