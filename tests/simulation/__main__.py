"""Command line of the simulation; `scripts/test sim --help` tells how it is used."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.runner import Report, prepare, run_many

SEEDS = Path(__file__).with_name("seeds.txt")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/test sim",
        description="Live through histories of an imaginary cluster, drawn from seeds.",
    )
    parser.add_argument("--histories", type=int, metavar="N", help="this many (default: 20000)")
    parser.add_argument(
        "--seed", type=int, help="repeat this one and print its log; with --histories the first"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many (default: 1)")
    parser.add_argument(
        "--mutants",
        nargs="*",
        metavar="NAME",
        help="run wrong versions of the code instead, all or these; each must be found out",
    )
    parser.add_argument(
        "--interleavings",
        choices=["few", "all"],
        help="enumerate, instead of drawing: 3 messages, 2 keys, 1 crash, 1 rebalance",
    )
    given = parser.parse_args(arguments)
    if given.interleavings is not None:
        from tests.simulation.enumeration import enumerate_all

        return enumerate_all(given.jobs, is_full=given.interleavings == "all")
    if given.mutants is not None:
        from tests.simulation.mutants.run import run_mutants

        return run_mutants(given.mutants, given.jobs, given.histories)
    if given.seed is not None and given.histories is None:
        return repeat(given.seed)
    return run(given.seed or 0, given.histories or 20_000, given.jobs, given.failures)


def run(first: int, histories: int, jobs: int, failures_max: int) -> int:
    """Live through many histories; 1 if one failed."""
    progress = Progress(histories)
    report = run_many(first, histories, jobs, failures_max=failures_max, on_progress=progress.show)
    progress.end()
    count = max(report.histories, 1)
    faults = ", ".join(f"{n} {kind}" for kind, n in sorted(report.faults.items()))
    seen = ", ".join(f"{n} {what}" for what, n in sorted(report.seen.items()))
    print(
        f"{report.histories} histories from seed {first} in {progress.seconds():.0f} s "
        f"({report.cpu_s / count * 1000:.1f} ms of processor and {report.steps / count:.0f} steps "
        f"each), commit {commit()}: {len(report.failures)} failed\nfaults: {faults}\n"
        f"histories in which the engine counted: {seen}"
    )
    return 1 if report.failures else 0


def repeat(seed: int) -> int:
    """Live through one history, and print its log; 1 if it failed."""
    from bookstore_streams.testing.virtual_time import START_MS
    from tests.simulation.checker import Violation
    from tests.simulation.log import shown
    from tests.simulation.world import World

    prepare()
    world = World(seed)
    failure: Exception | None = None
    try:
        world.run()
    except Exception as error:
        failure = error
    print(f"seed {seed}, commit {commit()}\n{world.shape}\n")
    for entry in world.log.entries:
        print(shown(entry, START_MS))
    print(f"\n{world.loop.steps} steps, {len(world.log.entries)} entries")
    sys.stdout.flush()
    if failure is None:
        print("Every promise was kept.")
        end(0)
    if not isinstance(failure, Violation):
        traceback.print_exception(failure)
    print(f"FAILED {failure!r}" if not isinstance(failure, Violation) else f"FAILED {failure}")
    end(1)
    return 1


def end(status: int) -> None:
    """End without tidying up after killed processes: their coroutines would run on."""
    sys.stdout.flush()
    os._exit(status)


def commit() -> str:
    """What git calls the code that runs."""
    named = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return named.stdout.strip() or "unknown"


class Progress:
    """A bar on a terminal, a line now and then elsewhere; both on stderr."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began_s = time.monotonic()
        self._shown_s = 0.0
        self._told = 0
        self._every_s = 0.2 if sys.stderr.isatty() else 30.0

    def seconds(self) -> float:
        """Since the begin."""
        return time.monotonic() - self._began_s

    def show(self, report: Report) -> None:
        """Tell of failures at once, and show how far it is if some time has gone by."""
        for failure in report.failures[self._told :]:
            print(
                f"\nseed {failure.seed}, commit {commit()}\n{failure.text}\n\n"
                f"repeat it: scripts/test sim --seed {failure.seed}",
                flush=True,
            )
        self._told = len(report.failures)
        now_s = self.seconds()
        if now_s - self._shown_s < self._every_s:
            return
        self._shown_s = now_s
        rate = report.histories / max(now_s, 1e-9)
        left_s = (self._total - report.histories) / max(rate, 1e-9)
        done = 30 * report.histories // self._total
        line = (
            f"[{'#' * done}{'.' * (30 - done)}] {report.histories}/{self._total} histories, "
            f"{rate:.0f} a second, {left_s:.0f} s left, {len(report.failures)} failed"
        )
        print(f"\r{line}" if sys.stderr.isatty() else line, end="", file=sys.stderr)
        print("" if sys.stderr.isatty() else "\n", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        if sys.stderr.isatty():
            print(file=sys.stderr)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of names are walked through in the same order in every run.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
