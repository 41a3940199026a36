"""How many examples property tests try: all with ``--long``, a part in a plain run."""

import pytest

_FEWEST = 5
_use_all = False


def use_all_examples() -> None:
    """Let tests that are imported from now on try all of their examples."""
    global _use_all  # noqa: PLW0603 - set once, before tests are imported
    _use_all = True


def examples(count: int) -> int:
    """Return how many of ``count`` examples of Hypothesis to try; each run draws others."""
    return count if _use_all else max(count // 10, min(count, _FEWEST))


def seeds(few, all_of_them):
    """Return the seeds below a number as parameters of a test; those from ``few`` on are marked long."""
    return [*range(few), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(few, all_of_them))]


def one_in(step, values):
    """Return values as parameters of a test; the first of each ``step`` runs always, the others are marked long."""
    return [pytest.param(value, marks=pytest.mark.long if place % step else ()) for place, value in enumerate(values)]
