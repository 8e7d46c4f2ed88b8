"""How the demo is shown: live on a terminal, as plain lines elsewhere, as JSON for programs.

Owns the looks; the words come from the timeline and the judgement.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import orjson
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.status import Status
from rich.table import Table
from rich.text import Text

from bookstore_streams.cli.output import printable

from .check import Finding
from .timeline import Kind, Moment, Timeline, waiting_line

_STYLES: Final[Mapping[Kind, str]] = {
    "told": "bold",
    "sent": "",
    "failed": "yellow",
    "booked": "green",
    "refused": "red",
    "waits": "cyan",
    "published": "green",
    "dead-letter": "bold red",
}
_STEP_COLUMNS: Final = 9
_TIME_COLUMNS: Final = 8
_PARAGRAPH_COLUMNS: Final = 88
# So many lines at the foot of a terminal; what waits beyond them is counted.
_WAITING_LINES_MAX: Final = 5


class View(Protocol):
    """Shows what the demo does."""

    def step(self, name: str, text: str) -> None:
        """Something is up."""

    def waiting(self, text: str) -> None:
        """Something is waited for; told again and again."""

    def begin(self, timeline: Timeline) -> None:
        """The timeline begins, or goes on."""

    def show(
        self, moments: Sequence[Moment], parked: Sequence[Mapping[str, Any]], now_ms: int
    ) -> None:
        """What is new in the timeline, and what waits now."""

    def end(self) -> None:
        """Nothing is live any more; may be called at any time, and twice."""

    def finding(self, finding: Finding) -> None:
        """A promise was looked at."""

    def say(self, text: str = "") -> None:
        """A line for people, left as it is so that it can be pasted."""

    def explain(self, text: str) -> None:
        """A paragraph for people."""

    def tell(self, kind: str, **facts: Any) -> None:
        """Facts for programs."""


class JsonView:
    """One JSON object a line, each with a `kind`."""

    def __init__(self) -> None:
        self._timeline: Timeline | None = None

    def step(self, name: str, text: str) -> None:
        """Something is up."""
        self.tell("step", name=name, text=text)

    def waiting(self, text: str) -> None:
        """Not told."""

    def begin(self, timeline: Timeline) -> None:
        """The timeline begins."""
        self._timeline = timeline
        self.tell("start", at_ms=timeline.start_ms)

    def show(
        self, moments: Sequence[Moment], parked: Sequence[Mapping[str, Any]], now_ms: int
    ) -> None:
        """What is new in the timeline."""
        for moment in moments:
            assert self._timeline is not None
            at_s = round(self._timeline.seconds(moment.at_ms), 3)
            self.tell(moment.kind, at_s=at_s, order=moment.order, text=moment.text)

    def end(self) -> None:
        """Nothing to do."""

    def finding(self, finding: Finding) -> None:
        """A promise was looked at."""
        self.tell(
            "check",
            passed=finding.is_kept,
            title=finding.title,
            differences=list(finding.differences),
        )

    def say(self, text: str = "") -> None:
        """Not told."""

    def explain(self, text: str) -> None:
        """Not told."""

    def tell(self, kind: str, **facts: Any) -> None:
        """One line."""
        print(orjson.dumps({"kind": kind, **facts}).decode(), flush=True)


class PlainView:
    """Lines that are only ever appended, for files and CI."""

    def __init__(self) -> None:
        self._timeline: Timeline | None = None

    def step(self, name: str, text: str) -> None:
        """Something is up."""
        self.say(f"{name:<{_STEP_COLUMNS}} {text}")

    def waiting(self, text: str) -> None:
        """Not shown: it would be a line many times a second."""

    def begin(self, timeline: Timeline) -> None:
        """The timeline begins."""
        self._timeline = timeline

    def show(
        self, moments: Sequence[Moment], parked: Sequence[Mapping[str, Any]], now_ms: int
    ) -> None:
        """What is new in the timeline."""
        for moment in moments:
            assert self._timeline is not None
            order, text = printable(moment.order), printable(moment.text)
            at = f"{self._timeline.seconds(moment.at_ms):{_TIME_COLUMNS - 2}.2f} s"
            self.say(f"{at}  {order:<{self._timeline.order_columns}}  {text}")

    def end(self) -> None:
        """Nothing to do."""

    def finding(self, finding: Finding) -> None:
        """A promise was looked at."""
        self.say(f"{'PASS' if finding.is_kept else 'FAIL'}  {finding.title}")
        for difference in finding.differences:
            self.say(f"      {difference}")

    def say(self, text: str = "") -> None:
        """A line."""
        print(text, flush=True)

    def explain(self, text: str) -> None:
        """A paragraph."""
        self.say(textwrap.fill(text, _PARAGRAPH_COLUMNS))

    def tell(self, kind: str, **facts: Any) -> None:
        """Not shown."""


class TerminalView:
    """Lines with colours above, and at the foot of the terminal what waits at this moment."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._live: Live | None = None
        self._rows: list[tuple[str, str, str]] | None = None
        self._timeline: Timeline | None = None

    def step(self, name: str, text: str) -> None:
        """Something is up."""
        self.end()
        self._line((_STEP_COLUMNS, name, "bold"), text=Text(text))

    def waiting(self, text: str) -> None:
        """Something is waited for."""
        if self._status is None:
            self._status = self._console.status(Text(text))
            self._status.start()
        self._status.update(Text(text))

    def begin(self, timeline: Timeline) -> None:
        """The timeline begins."""
        self.end()
        self._timeline = timeline
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._live.start()
        self._rows = None

    def show(
        self, moments: Sequence[Moment], parked: Sequence[Mapping[str, Any]], now_ms: int
    ) -> None:
        """What is new in the timeline, and what waits now."""
        assert self._timeline is not None
        for moment in moments:
            style = _STYLES[moment.kind]
            at = f"{self._timeline.seconds(moment.at_ms):.2f} s".rjust(_TIME_COLUMNS)
            self._line(
                (_TIME_COLUMNS, at, "dim"),
                (self._timeline.order_columns, printable(moment.order), style),
                text=Text(printable(moment.text), style),
            )
        timeline = self._timeline
        rows = [waiting_line(row, timeline.attempts_max, now_ms) for row in parked]
        # Drawn only when it changes: whoever marks text to copy would lose it otherwise.
        if self._live is not None and (moments or rows != self._rows):
            self._rows = rows
            self._live.update(self._foot(timeline, rows), refresh=True)

    def end(self) -> None:
        """Nothing is live any more."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def finding(self, finding: Finding) -> None:
        """A promise was looked at."""
        word, style = ("PASS", "bold green") if finding.is_kept else ("FAIL", "bold red")
        self._line((4, word, style), text=Text(finding.title))
        for difference in finding.differences:
            self._line((4, "", ""), text=Text(printable(difference), "red"))

    def say(self, text: str = "") -> None:
        """A line, left as it is so that it can be pasted."""
        self._console.print(Text(text), soft_wrap=True)

    def explain(self, text: str) -> None:
        """A paragraph."""
        columns = min(self._console.width, _PARAGRAPH_COLUMNS)
        self._console.print(Text(text), width=columns)

    def tell(self, kind: str, **facts: Any) -> None:
        """Not shown."""

    def _line(self, *cells: tuple[int, str, str], text: Text) -> None:
        """Cells of fixed width, and a text that goes on below itself where it is too long."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        for columns, _, _ in cells:
            grid.add_column(width=columns, overflow="fold")
        grid.add_column(overflow="fold")
        grid.add_row(*(Text(cell, style) for _, cell, style in cells), text)
        self._console.print(grid)

    def _foot(self, timeline: Timeline, rows: Sequence[tuple[str, str, str]]) -> RenderableType:
        counts = timeline.counts
        title = (
            f"messages {counts['sent']} · paid or refunded {counts['booked']}"
            f" · dead letters {counts['dead-letter']} · waiting {len(rows)}"
        )
        longest = max([timeline.order_columns, *(len(key) for key, _, _ in rows)])
        columns = min(longest, self._console.width // 3)
        # Not the whole width: the ^C that a terminal writes itself must not begin a new line.
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.width = self._console.width - 4
        grid.add_column(width=_TIME_COLUMNS)
        grid.add_column(width=columns, min_width=columns, overflow="ellipsis", no_wrap=True)
        grid.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
        for key, what, cause in rows[:_WAITING_LINES_MAX]:
            why = (f"  {printable(cause)}", "dim")
            grid.add_row("", printable(key), Text.assemble((what, "cyan"), why))
        if not rows:
            grid.add_row("", "", Text("nothing waits right now", "dim"))
        if (more := len(rows) - _WAITING_LINES_MAX) > 0:
            grid.add_row("", "", f"and {more} more")
        return Group(Rule(Text(title), style="dim"), grid)


def view(*, is_json: bool) -> View:
    """The view for this standard output."""
    if is_json:
        return JsonView()
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty():
        return TerminalView(console)
    return PlainView()
