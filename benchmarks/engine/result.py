"""What a run leaves behind: figures of each contestant, and the circumstances they hold under."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.engine.race import Round
from benchmarks.engine.worker import ROOT

LIBRARIES = ("faust-streaming", "aiokafka", "rocksdict", "orjson")


def summary(
    rounds: Sequence[Round], reference: Sequence[Round], latencies_ms: Sequence[float]
) -> dict[str, Any]:
    """A contestant's figures over its rounds.

    Args:
        rounds: of this contestant, at least one.
        reference: rounds of the one that ratios are to, paired with `rounds` by place; may be
            empty.
        latencies_ms: may be empty.
    """
    ratios = [
        mine.messages_per_s / theirs.messages_per_s
        for mine, theirs in zip(rounds, reference, strict=False)
        if mine.messages_per_s and theirs.messages_per_s
    ]
    costs = [each.cpu_us_per_message for each in rounds if each.cpu_us_per_message]
    exact = [each.is_exact for each in rounds if each.is_exact is not None]
    return {
        "messages_per_s": _spread([each.messages_per_s for each in rounds if each.messages_per_s]),
        "ratio": _spread(ratios),
        "cpu_us_per_message": _spread(costs),
        "cpu_s": round(statistics.median(each.cpu_s for each in rounds), 2),
        "rss_mb_max": max(each.rss_mb_max for each in rounds),
        "latency_ms": _percentiles(latencies_ms),
        "exact": all(exact) if exact else None,
        "rounds": [asdict(each) for each in rounds],
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = {"min": min(values), "median": statistics.median(values), "max": max(values)}
    return {name: round(value, 2) for name, value in found.items()}


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {f"p{part}": round(ordered[(len(ordered) - 1) * part // 100], 1) for part in (50, 99)}


def circumstances() -> dict[str, Any]:
    """What someone needs to know of code and machine, just before the run, to compare results."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        # Otherwise the commit does not say what was measured.
        "uncommitted_files": len(_git("status", "--porcelain").splitlines()),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        # Other work here flatters whoever waits for the broker less.
        "load_average_before": round(os.getloadavg()[0], 1),
    }


def _git(*command: str) -> str:
    """What git says; empty where there is no git or no repository."""
    try:
        return subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
