"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "3b6046d80db4ff1f"
SESSION_RULES: Final = "2d950ea15f474e82"
CLONE_RULES: Final = "cebb1c53e42ae065"
SEQUENCE_RULES: Final = "dd362c91b08966b6"
