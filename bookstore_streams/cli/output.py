"""What commands print: JSON for programs, tables and words for people, progress on stderr."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import unicodedata
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import click
import orjson
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from bookstore_streams.errors import BookstoreError

T = TypeVar("T")

# Control, format and surrogate characters, line and paragraph separators.
_UNPRINTABLE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))

# Wide enough that nothing is folded where nobody looks at it as a page.
PIPED_COLUMNS = 500

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def wants_json(as_json: bool) -> bool:
    """Whether `--json` was given, to the command or before it, where Faust takes it."""
    root = click.get_current_context().find_root()
    return as_json or bool(getattr(root.obj, "json", False))


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work to its end.

    Raises:
        ClickException: it failed; shown as one message, exit status 1.
    """
    # What clients log while they fail is said in the one message already.
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return asyncio.run(work)
    except BookstoreError as error:
        lines = str(error).splitlines()
        raise click.ClickException("\n".join(map(printable, lines))) from error
    finally:
        logging.disable(disabled)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on stdout; None is shown as a dash."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_COLUMNS)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else printable(str(cell))) for cell in row))
    console.print(table)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on stderr where that is a terminal; gives a function to tell (done, all)."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def printable(text: str) -> str:
    r"""The text with control characters as `\x1b`, so that no message can steer a terminal."""
    return "".join(
        each.encode("unicode_escape").decode()
        if unicodedata.category(each) in _UNPRINTABLE
        else each
        for each in text
    )


def duration(ms: int) -> str:
    """A duration in words, in its largest unit: `850 ms`, `12 s`, `3 min`, `5 h`, `2 d`."""
    for unit, size_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size_ms:
            return f"{ms // size_ms} {unit}"
    return f"{ms} ms"


def moment(at_ms: int, now_ms: int) -> str:
    """A time seen from now: `in 12 s`, `3 min ago`, `now`."""
    if abs(at_ms - now_ms) < 1_000:
        return "now"
    return f"in {duration(at_ms - now_ms)}" if at_ms > now_ms else f"{duration(now_ms - at_ms)} ago"
