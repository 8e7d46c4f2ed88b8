"""`scripts/bench all`: every benchmark in turn on one Kafka, its results kept, the page renewed."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import MODULES, benchmark
from benchmarks.frame import Size, add_size, broker_of, measured, prepare_process
from benchmarks.page import write_page
from benchmarks.worker import ROOT
from bookstore_streams.errors import BookstoreError

RESULTS = ROOT / "benchmarks" / "results"


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ends the process on wrong usage."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench all",
        description="Every benchmark, one after the other on one Kafka; each result goes to a file "
        "of its own, then docs/performance.md and its plots are made anew.",
    )
    add_size(parser)
    parser.add_argument("--seed", type=int, default=1, help="of every choice; default 1")
    parser.add_argument("--broker", help="kafka://host:port instead of a Kafka of its own")
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(MODULES),
        help=f"some of them, separated by commas: {', '.join(MODULES)}",
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the results; default %(default)s"
    )
    parser.add_argument("--no-page", action="store_true", help="leave docs/performance.md alone")
    args = parser.parse_args(argv)
    if unknown := set(args.only).difference(MODULES):
        parser.error(f"--only: no such benchmark: {', '.join(sorted(unknown))}")
    args.results.mkdir(parents=True, exist_ok=True)
    return args


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 all ran and were exact, 1 some not, 130 interrupted."""
    args = arguments(argv)
    prepare_process()
    failed = []
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as folder,
            broker_of(args.broker, Path(folder)) as (url, version),
        ):
            for name in args.only:
                if not _measure(name, args, url, version):
                    failed.append(name)
    except BookstoreError as error:
        print(f"scripts/bench all: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    if not args.no_page:
        write_page()
    if failed:
        print(f"scripts/bench all: not exact, or did not run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _measure(name: str, args: argparse.Namespace, url: str, version: str | None) -> bool:
    """One benchmark; only what ran through is kept."""
    chosen = benchmark(name)
    command = [name, "--size", args.size, "--seed", str(args.seed)]
    minutes = {Size.QUICK: chosen.minutes[0], Size.FULL: chosen.minutes[1]}.get(args.size, 0.5)
    print(f"\n== {name} (about {minutes:g} min)", file=sys.stderr)
    started_s = time.monotonic()
    try:
        line, is_good = measured(chosen, chosen.arguments(command[1:]), url, version, command)
    except Exception as error:  # the others still have something to tell
        print(f"scripts/bench {name}: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    print(f"{name} took {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    result = json.loads(line)
    path = args.results / f"{name}-{result['at'][:10]}-{result['commit'][:7] or 'unknown'}.json"
    if is_good:
        path.write_text(line + "\n")
    print(line)
    return is_good
