"""Wrong versions of core and engine: a checker that finds none of them out would be no checker."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.mutants.catalogue import MUTANTS, Mutant
from tests.simulation.mutants.run import mutated

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_as_it_is(mutant: Mutant) -> None:
    """If it does not: the code has new words; say the same mistake in them."""
    for module in {edit.module for edit in mutant.edits}:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        source = Path(spec.origin).read_text()
        edits = [edit for edit in mutant.edits if edit.module == module]

        assert mutated(source, edits) != source


def test_no_two_mutants_have_one_name() -> None:
    names = [mutant.name for mutant in MUTANTS]

    assert len(names) == len(set(names)) >= 25


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_every_mutant_is_found_out() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--mutants", "--histories", "3000"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-2_000:]
    assert ", 0 survived" in run.stdout
