"""What tests of gold share."""

import pytest

from pipeline.attempts import affected_scope


@pytest.fixture
def in_few_calls_too(monkeypatch):
    """Choose what shares a name with a change, however few calls there are."""
    monkeypatch.setattr(affected_scope, "MIN_CALLS_FOR_KEYS", -1)
