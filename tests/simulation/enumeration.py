"""Runs the enumerations: all of them, or those that CI has time for.

What is enumerated is stated in docs/testing.md; the numbers printed are counted, not worked out.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.simulation.drills import Drill, drills, run_pairs, run_singly, steps_of
from tests.simulation.interleavings import IDS, Enumeration, Scenario, scenarios
from tests.simulation.runner import prepare

T = TypeVar("T")

#: What CI has time for: fewer kinds of calls and of rebalances, and no copies.
FEW_SCRIPTS = ("o", "to", "p")
FEW_DRILLS = "tp"
#: Of which every pair of steps is tried.
PAIRED_DRILLS = "tp"


def enumerate_all(jobs: int, *, is_full: bool) -> int:
    """Run the enumerations and print what was looked at; 1 if a promise was broken."""
    prepare()
    try:
        _enumerate_core(jobs, is_full)
        _enumerate_engine(jobs, is_full)
    except AssertionError as error:
        print(f"FAILED {error}")
        return 1
    return 0


def _enumerate_core(jobs: int, is_full: bool) -> None:
    began_s = time.monotonic()
    chosen = list(scenarios())
    if not is_full:
        few = scenarios(FEW_SCRIPTS, IDS[:1])
        chosen = [s for s in few if s.has_hook == ("p" in s.scripts) and not s.immediate]
    looked = _spread("core", jobs, _look_at, chosen)
    states, steps, ends = (sum(column) for column in zip(*looked, strict=True))
    print(
        f"core: {len(chosen)} scenarios of 3 messages, 2 keys, 1 crash, 1 rebalance; every choice "
        f"followed: {states} states, {steps} steps, {ends} ends, in {_since(began_s)} s",
        flush=True,
    )


def _look_at(scenario: Scenario) -> tuple[int, int, int]:
    enumeration = Enumeration(scenario)
    enumeration.run()
    return enumeration.states, enumeration.steps, enumeration.ends


def _enumerate_engine(jobs: int, is_full: bool) -> None:
    began_s = time.monotonic()
    chosen = list(drills())
    if not is_full:
        chosen = [drill for drill in drills(FEW_DRILLS) if drill.rebalance == "pause"]
    lived = sum(_spread("engine, one at a time", jobs, run_singly, chosen))
    print(
        f"engine: {len(chosen)} drills of 3 messages and 2 keys, a crash at every step, and a "
        f"rebalance at every step: {lived} lives, in {_since(began_s)} s",
        flush=True,
    )
    if not is_full:
        return
    began_s = time.monotonic()
    paired = list(drills(PAIRED_DRILLS))
    lasts = _spread("engine, length", jobs, steps_of, paired)
    tasks = [
        (drill, first, is_crash_first)
        for drill, last in zip(paired, lasts, strict=True)
        for first in range(last + 1)
        for is_crash_first in (True, False)
    ]
    lived = sum(_spread("engine, both", jobs, _pairs, tasks))
    print(
        f"engine: {len(paired)} drills, a crash and a rebalance at every pair of steps: "
        f"{lived} lives, in {_since(began_s)} s",
        flush=True,
    )


def _pairs(task: tuple[Drill, int, bool]) -> int:
    drill, first, is_crash_first = task
    return run_pairs(drill, first, is_crash_first=is_crash_first)


def _spread(what: str, jobs: int, work: Callable[[Any], T], tasks: Sequence[Any]) -> list[T]:
    """Have the work done in child processes, each of which is used once and then gone."""
    results, shown_s = [], time.monotonic()
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        for result in pool.imap(work, tasks, chunksize=1):
            results.append(result)
            if time.monotonic() - shown_s > 10:
                shown_s = time.monotonic()
                print(f"{what}: {len(results)} of {len(tasks)}", file=sys.stderr, flush=True)
    return results


def _since(began_s: float) -> int:
    return round(time.monotonic() - began_s)
