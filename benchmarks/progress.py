"""What a person sees during a run and at its end, on stderr: stdout is for the JSON line."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

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


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A table as text: the first row is its head, the first column stands left, others right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
