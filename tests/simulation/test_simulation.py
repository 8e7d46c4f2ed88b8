"""Many histories of an imaginary cluster with the real core and engine: every promise is kept."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import plan

ROOT = Path(__file__).parents[2]
# What CI has time for; `scripts/test sim --histories 1000000` lives through more.
HISTORIES = 20_000
# What must have come at least once in so many: a simulation that never gets there shows nothing.
FAULTS = plan.KINDS
SEEN = (
    "commits",
    "dead_letter_hook_failures",
    "dead_letters:attempts-exhausted",
    "dead_letters:deadline-passed",
    "dead_letters:missing-key",
    "dead_letters:missing-message-id",
    "dead_letters:permanent",
    "dead_letters:undecodable",
    "duplicates",
    "fences",
    "ignored:tombstone",
    "ignored:unknown-type",
    "lease_lost",
    "parked",
    "retries",
    "unparked",
)


def simulate(*arguments: str) -> str:
    """What the simulation prints; it must end well."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-8_000:]
    return run.stdout


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_whatever_goes_wrong_every_promise_is_kept() -> None:
    told = simulate("--histories", str(HISTORIES))

    assert f"{HISTORIES} histories from seed 0" in told
    assert ": 0 failed" in told
    for what in (*FAULTS, *SEEN):
        assert re.search(rf"[1-9]\d* {what}\b", told), f"{what} never came"


def test_seeds_that_once_found_something_find_nothing_any_more() -> None:
    lines = (ROOT / "tests" / "simulation" / "seeds.txt").read_text().splitlines()
    seeds = [line.split()[0] for line in lines if line and not line.startswith("#")]

    for seed in seeds:
        simulate("--seed", seed)


def test_a_seed_is_the_same_history_each_time() -> None:
    first, again = simulate("--seed", "11"), simulate("--seed", "11")

    assert first == again
    assert "Every promise was kept." in first
