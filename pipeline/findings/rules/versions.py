"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "137fc78176cd069d"
SESSION_RULES: Final = "f7cb9077cda07333"
CLONE_RULES: Final = "eca50fbadff2369a"
SEQUENCE_RULES: Final = "821960cc94ac7a86"
