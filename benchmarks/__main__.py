"""`python -m benchmarks NAME ARGS`, which `scripts/bench` calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import MODULES, benchmark
from benchmarks.frame import run


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 all ran and were exact, 1 not so, 2 wrong usage."""
    names = ", ".join([*MODULES, "all", "guard"])
    if not argv or argv[0] not in (*MODULES, "all", "guard"):
        print(f"scripts/bench: say what to measure: {names} (--help tells more)", file=sys.stderr)
        return 2
    if argv[0] == "all":
        from benchmarks.everything import main as measure_all

        return measure_all(argv[1:])
    if argv[0] == "guard":
        from benchmarks.guard import main as count

        return count(argv[1:])
    chosen = benchmark(argv[0])
    return run(chosen, chosen.arguments(argv[1:]), argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
