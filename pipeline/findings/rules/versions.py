"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "5d0e4889a4569ad9"
SESSION_RULES: Final = "439d83bea50e00d5"
CLONE_RULES: Final = "85a3eb14fe50d6de"
SEQUENCE_RULES: Final = "57e4bb88975dc576"
