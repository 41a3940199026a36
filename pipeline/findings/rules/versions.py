"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "059f9989190468bc"
SESSION_RULES: Final = "d3df0db4193b0570"
CLONE_RULES: Final = "2b32efa802a6e2f0"
SEQUENCE_RULES: Final = "f282a0af9c49ae6e"
