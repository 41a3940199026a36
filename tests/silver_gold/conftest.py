"""What tests of gold share."""

import pytest

from pipeline import touched


@pytest.fixture
def in_few_calls_too(monkeypatch):
    """Choose what shares a name with a change, however few calls there are."""
    monkeypatch.setattr(touched, "FEW", -1)
