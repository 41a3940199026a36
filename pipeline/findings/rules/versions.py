"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

CALL_RULES: Final = "e7decfb39dfae0dd"
SESSION_RULES: Final = "597653d5218bd407"
CLONE_RULES: Final = "bcdf40d79733eff8"
SEQUENCE_RULES: Final = "26fbe30a2bbc660c"
