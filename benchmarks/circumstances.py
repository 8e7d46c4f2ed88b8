"""What someone needs to know of code and machine to compare two results."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.worker import ROOT

LIBRARIES = ("faust-streaming", "aiokafka", "rocksdict", "orjson")


def circumstances() -> dict[str, Any]:
    """The state of code and machine just before a run."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        # Otherwise the commit does not say what was measured. Results of the same session
        # change nothing of that.
        "uncommitted_files": len(
            _git("status", "--porcelain", "--", ".", ":!benchmarks/results", ":!docs").splitlines()
        ),
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
