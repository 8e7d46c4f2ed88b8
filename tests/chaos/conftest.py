"""The seed of the chaos tests: given, or fresh in each run."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture
def seed() -> int:
    """What a run is drawn from; CHAOS_SEED repeats one. Every failure names it."""
    given = os.environ.get("CHAOS_SEED")
    return random.SystemRandom().randrange(1_000_000) if given is None else int(given)
