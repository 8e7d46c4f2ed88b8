"""docs/performance.md and its plots, made from the newest result of each benchmark.

The page is written by hand except for what stands between `<!-- measured: NAME -->` and
`<!-- end -->`: that is made here, so that every number can be traced to a result file and to
the command that made it. `scripts/generate-performance-doc --check` compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import MODULES
from benchmarks.goals import goals
from benchmarks.plots import PLOTS
from benchmarks.sections import SECTIONS
from benchmarks.worker import ROOT

PAGE = ROOT / "docs" / "performance.md"
PLOT_FOLDER = ROOT / "docs" / "performance"
RESULTS = ROOT / "benchmarks" / "results"

_BLOCK = re.compile(r"(<!-- measured: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# Results of the first layout do not say how much was done; they are kept, and not shown.
_SHOWN_SIZES = ("quick", "full")

Result = Mapping[str, Any]


def newest(folder: Path = RESULTS) -> dict[str, tuple[str, Result]]:
    """Benchmark -> (file name, result), the newest of each that is large enough to tell."""
    found: dict[str, tuple[str, Result]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        name = result["benchmark"]
        if result.get("size") not in _SHOWN_SIZES or name not in MODULES:
            continue
        if name not in found or found[name][1]["at"] <= result["at"]:
            found[name] = (path.name, result)
    return found


def files(page: Path = PAGE, results: Path = RESULTS) -> dict[Path, str]:
    """Every file that is made, and what has to stand in it."""
    found = newest(results)

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}\n{_block(match[2], found)}\n{match[3]}"

    made = {page: _BLOCK.sub(block, page.read_text())}
    for name, (_, result) in found.items():
        for plot, text in plots_of(name, result).items():
            made[PLOT_FOLDER / f"{plot}.svg"] = text
    return made


def write_page() -> list[Path]:
    """Write what has changed; returns which."""
    changed = outdated()
    for path, text in files().items():
        if path in changed:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    for path in changed:
        if path not in files():
            path.unlink()
    return changed


def outdated() -> list[Path]:
    """Files that do not hold what the results say, and plots of no result."""
    made = files()
    wrong = [p for p, text in made.items() if not p.exists() or p.read_text() != text]
    return wrong + [path for path in sorted(PLOT_FOLDER.glob("*.svg")) if path not in made]


def _block(name: str, found: Mapping[str, tuple[str, Result]]) -> str:
    if name == "goals":
        return goals({each: result for each, (_, result) in found.items()})
    if name not in found:
        return f"Not measured yet: `scripts/bench {name}`.\n"
    file, result = found[name]
    plots = "".join(
        f"![{plot.replace('-', ' ')}](performance/{plot}.svg)\n\n"
        for plot in plots_of(name, result)
    )
    return f"{_source(file, result)}\n\n{SECTIONS[name](result)}\n{plots}".rstrip("\n") + "\n"


def plots_of(name: str, result: Result) -> dict[str, str]:
    """Name of each plot of a result -> its SVG."""
    return PLOTS[name](result) if name in PLOTS else {}


def _source(file: str, result: Result) -> str:
    commit = result["commit"][:7] or "unknown"
    changed = result["uncommitted_files"]
    return (
        f"[`{file}`](../benchmarks/results/{file}), by `{result['command']}` at commit {commit}"
        f"{f' with {changed} files changed' if changed else ''}, {result['at'][:10]}, Python "
        f"{result['python']}, {result['cores']} cores of {result['cpu']}, Kafka "
        f"{result['kafka'] or 'unknown'}, load average before {result['load_average_before']}; "
        f"took {result['took_s']:.0f} s."
    )
