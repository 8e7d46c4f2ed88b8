"""Reads the engine's committed rows in small steps, so that messages go on meanwhile.

A partition may be closed between two steps, never within one: steps and closing run in the
same loop. What was read to its end is reported, so that a view knows what it has missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice

from bookstore_streams.engine.engine import Engine

# One to two milliseconds of work, and no more than that in memory.
STEP_ROWS = 250
STEP_BYTES = 1 << 20

Row = tuple[bytes, bytes]


async def steps(
    engine: Engine, number: int, table: str, prefix: bytes = b"", start: bytes | None = None
) -> AsyncIterator[list[Row]]:
    """Rows of one partition in key order, some at a time; the last list is empty.

    It ends without that empty list when the partition was closed before its end was reached.
    """
    while (partition := engine.open_partition(number)) is not None:
        rows = _step(partition.scan(table, prefix, start))
        if rows:
            yield rows
            start = rows[-1][0] + b"\0"
            await asyncio.sleep(0)
        else:
            yield []
            return


def _step(rows: Iterable[Row]) -> list[Row]:
    taken: list[Row] = []
    size = 0
    for key, raw in islice(rows, STEP_ROWS):
        taken.append((key, raw))
        size += len(key) + len(raw)
        if size >= STEP_BYTES:
            break
    return taken
