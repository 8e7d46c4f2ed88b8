"""Runs the mutants: each in a process of its own, until a checker finds it out."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, NamedTuple

from tests.simulation.mutants.catalogue import MUTANTS, Edit, Mutant
from tests.simulation.runner import run_many

# A mutant that lives through so many histories has survived.
HISTORIES_MAX = 3_000
# Most are found out at once; one can also make the engine run for ever.
BATCH = 25
BATCH_S_MAX = 60.0


class Verdict(NamedTuple):
    """What came of a mutant.

    Attributes:
        name: of the mutant.
        checker: that found it out; "" when none did.
        histories: how many it took.
        text: what the checker said, or why the mutant could not be made.
    """

    name: str
    checker: str
    histories: int
    text: str
    seconds: float = 0.0


class _Loader(SourceFileLoader):
    """Loads a module with some of its text changed."""

    edits: tuple[Edit, ...] = ()

    def get_code(self, fullname: str) -> Any:
        source = self.get_source(fullname) or ""
        return compile(mutated(source, self.edits), self.path, "exec", dont_inherit=True)


class _Finder:
    """Finds the modules of a mutant before anybody else does."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        edits = tuple(edit for edit in self._mutant.edits if edit.module == fullname)
        if not edits:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        loader = _Loader(fullname, spec.origin)
        loader.edits = edits
        return importlib.util.spec_from_loader(fullname, loader)


def mutated(source: str, edits: Sequence[Edit]) -> str:
    """The text of a module with the edits made.

    Raises:
        ValueError: an edit does not fit: its text stands there not at all, or more than once.
    """
    for edit in edits:
        if (count := source.count(edit.old)) != 1:
            raise ValueError(f"stands {count} times in {edit.module}, not once: {edit.old!r}")
        source = source.replace(edit.old, edit.new)
    return source


def run_mutant(mutant: Mutant, histories_max: int) -> Verdict:
    """Live through histories with a mutant until one fails; only in a process of its own."""
    began_s = time.monotonic()
    sys.meta_path.insert(0, _Finder(mutant))
    try:
        report = run_many(0, histories_max, 1, batch=BATCH, batch_s_max=BATCH_S_MAX)
    except ValueError as error:
        return Verdict(mutant.name, "", 0, str(error))
    seconds = time.monotonic() - began_s
    if not report.failures:
        return Verdict(mutant.name, "", report.histories, "it survived", seconds)
    first = min(report.failures)
    return Verdict(mutant.name, first.checker, first.seed + 1, first.text, seconds)


def run_mutants(names: Sequence[str], jobs: int, histories_max: int | None) -> int:
    """Run all mutants, or those of these names, and print a table; 1 if one survived."""
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(f"No mutant is called {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    print(f"{'mutant':34} {'found out by':14} {'histories':>9} {'s':>5}")
    survivors = 0
    for verdict in _verdicts(chosen, jobs, histories_max or HISTORIES_MAX):
        survivors += not verdict.checker
        print(
            f"{verdict.name:34} {verdict.checker or 'NOBODY':14} {verdict.histories:9} "
            f"{verdict.seconds:5.1f}",
            flush=True,
        )
        if not verdict.checker or names:
            print(f"    {verdict.text}")
    print(f"{len(chosen)} mutants, {survivors} survived")
    return 1 if survivors else 0


def _verdicts(mutants: Sequence[Mutant], jobs: int, histories_max: int) -> Any:
    """Verdicts in the order of the mutants, `jobs` at a time."""
    running: list[tuple[Mutant, int, int]] = []
    waiting = list(mutants)
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append((waiting[0], *_start(waiting.pop(0), histories_max)))
        mutant, pid, pipe = running.pop(0)
        with os.fdopen(pipe, "rb") as stream:
            data = stream.read()
        os.waitpid(pid, 0)
        yield pickle.loads(data) if data else Verdict(mutant.name, "", 0, "its process died")


def _start(mutant: Mutant, histories_max: int) -> tuple[int, int]:
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    with contextlib.suppress(BaseException):
        os.close(read)
        verdict = run_mutant(mutant, histories_max)
        with os.fdopen(write, "wb") as stream:
            stream.write(pickle.dumps(verdict))
    os._exit(0)
