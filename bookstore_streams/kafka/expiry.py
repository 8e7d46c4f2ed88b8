"""Deletes expired rows a few at a time, beside the commits: no scan grows with the table.

A pass goes over the table in steps, each bounded by what the commit beside it wrote, so the
table holds at most a little more than twice what is not expired. Between passes nothing is
read. The row's own time decides, so rows restored from a changelog keep their age. The copy
in the changelog expires by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import orjson

from bookstore_streams.core.inbox import Outcome

# Of a step, even when nothing was written: about 0.1 ms.
_ROWS_MIN = 64
# Twice what came in, else a pass could never catch up with the table's growth.
_ROWS_PER_WRITE = 2
# A pass begins when an eighth of the age's worth of rows can have expired.
_PASSES_PER_AGE = 8


class Scan(Protocol):
    """Rows in key order from a key on."""

    def __call__(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of each row whose key is `start` or behind it."""
        ...


class Expiry:
    """Which rows of one table to delete next.

    Attributes:
        table: name of it.
    """

    def __init__(self, table: str, age_ms: int, scan: Scan) -> None:
        """Begin with a pass, since nothing is known of the rows that are there.

        Args:
            table: whose rows are JSON with `at_ms`, and stay while their `outcome` is parked.
            age_ms: that a row must have reached.
            scan: reads the table.
        """
        self.table = table
        self._age_ms = age_ms
        self._scan = scan
        self._cursor = b""
        self._oldest_ms: int | None = None
        self._next_pass_ms = 0

    def step(self, now_ms: int, written: int) -> list[bytes]:
        """Keys of expired rows among the next few; to be deleted with this commit.

        Args:
            now_ms: epoch ms.
            written: rows of the table in this commit.
        """
        if now_ms < self._next_pass_ms:
            return []
        left = _ROWS_MIN + _ROWS_PER_WRITE * written
        expired: list[bytes] = []
        for key, raw in self._scan(self._cursor):
            if left == 0:
                self._cursor = key
                return expired
            left -= 1
            row = orjson.loads(raw)
            if row["outcome"] == Outcome.PARKED:
                continue  # not done yet, however long it takes
            if row["at_ms"] + self._age_ms < now_ms:
                expired.append(key)
            elif self._oldest_ms is None or row["at_ms"] < self._oldest_ms:
                self._oldest_ms = row["at_ms"]
        oldest_ms = now_ms if self._oldest_ms is None else self._oldest_ms
        self._next_pass_ms = oldest_ms + self._age_ms + self._age_ms // _PASSES_PER_AGE
        self._cursor, self._oldest_ms = b"", None
        return expired
