"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "6575717cf58db8ce"
SESSION_RULES: Final = "c70d28482410a732"
CLONE_RULES: Final = "a5ba733c4435d68c"
SEQUENCE_RULES: Final = "821960cc94ac7a86"
