"""What a person sees during a run and at its end, on stderr: stdout is for the JSON line."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

BAR_WIDTH = 24
# A log file gets no more than one line for so long.
LINE_EVERY_S = 5.0


class Progress:
    """One line that is written over on a terminal, and a line now and then anywhere else."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown_at_s = 0.0

    def show(self, label: str, done: int, total: int) -> None:
        filled = BAR_WIDTH * done // max(total, 1)
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{label} [{bar}] {done:,}/{total:,}")
            sys.stderr.flush()
        elif time.monotonic() - self._shown_at_s >= LINE_EVERY_S:
            self._shown_at_s = time.monotonic()
            print(f"{label} {done:,}/{total:,}", file=sys.stderr)

    def say(self, text: str) -> None:
        """A line that stays."""
        print(("\r\x1b[K" if self._is_terminal else "") + text, file=sys.stderr)


def table(contestants: Mapping[str, Mapping[str, Any]]) -> str:
    """The run's figures, a contestant a line, in the order given."""
    head = ("contestant", "messages/s", "(min - max)", "ratio", "(min - max)", "us CPU/msg")
    rows: list[Sequence[str]] = [(*head, "CPU s", "RSS MB", "p50 ms", "p99 ms", "exact")]
    for name, found in contestants.items():
        if "rounds" not in found:
            rows.append((name, "absent" if "absent" in found else "FAILED", *[""] * 9))
            continue
        speed, ratio, cost = (
            found[what] for what in ("messages_per_s", "ratio", "cpu_us_per_message")
        )
        latency = found["latency_ms"] or {}
        rows.append(
            (
                name,
                *_spread(speed, ",.0f"),
                *_spread(ratio, ".1f"),
                _spread(cost, ".0f")[0],
                _number(found["cpu_s"], ".1f"),
                _number(found["rss_mb_max"], ".0f"),
                _number(latency.get("p50"), ",.0f"),
                _number(latency.get("p99"), ",.0f"),
                {True: "yes", False: "NO", None: "-"}[found["exact"]],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _spread(found: Mapping[str, float] | None, spec: str) -> tuple[str, str]:
    if found is None:
        return "-", ""
    return f"{found['median']:{spec}}", f"({found['min']:{spec}} - {found['max']:{spec}})"


def _number(found: float | None, spec: str) -> str:
    return "-" if found is None else f"{found:{spec}}"
