"""Deletes expired rows a few at a time, beside the commits: no scan grows with the table.

A pass goes over the table in steps, each bounded by what the commit beside it wrote, so the
table holds at most a little more than twice what is not expired. Between passes nothing is
read. The row's own time decides, so rows restored from a changelog keep their age. The copy
in the changelog expires by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookstore_streams.core.inbox import Outcome

# How the rows begin: what stands there is read without parsing the rest, which an iterator
# passes at two rows for every row that is written.
_PARKED = b'{"outcome":"%b",' % Outcome.PARKED.value.encode()
_AT = b'"at_ms":'
# Of a step, even when nothing was written: about 0.1 ms.
_ROWS_MIN = 64
# Twice what came in, else a pass could never catch up with the table's growth.
_ROWS_PER_WRITE = 2
# A pass begins when an eighth of the age's worth of rows can have expired.
_PASSES_PER_AGE = 8


class Expiry:
    """Which rows of one table to delete next.

    Attributes:
        table: name of it.
    """

    def __init__(self, table: str, age_ms: int, iterate: Callable[[], Any]) -> None:
        """Begin with a pass, since nothing is known of the rows that are there.

        Args:
            table: whose rows are those of `core.inbox.inbox_row`; they stay while parked.
            age_ms: that a row must have reached.
            iterate: makes an iterator of RocksDB over the table.
        """
        self.table = table
        self._age_ms = age_ms
        self._iterate = iterate
        self._cursor = b""
        self._oldest_ms: int | None = None
        self._next_pass_ms = 0

    def step(self, now_ms: int, written: int) -> list[bytes]:
        """Keys of expired rows among the next few; to be deleted with this commit.

        Args:
            now_ms: epoch ms.
            written: rows of the table in this commit.

        Raises:
            Exception: as RocksDB raises it: the data is damaged.
        """
        if now_ms < self._next_pass_ms:
            return []
        expired: list[bytes] = []
        expired_ms, oldest_ms = now_ms - self._age_ms, self._oldest_ms or now_ms
        rows = self._iterate()
        rows.seek(self._cursor)
        left = _ROWS_MIN + _ROWS_PER_WRITE * written
        while left and rows.valid():
            left -= 1
            raw = rows.value()
            # A parked message is not done, however long it takes; the stamp is no row.
            if not raw.startswith(_PARKED) and raw.startswith(b"{"):
                begin = raw.index(_AT) + len(_AT)
                at_ms = int(raw[begin : raw.index(b",", begin)])
                if at_ms < expired_ms:
                    expired.append(rows.key())
                elif at_ms < oldest_ms:
                    oldest_ms = at_ms
            rows.next()
        if rows.valid():
            self._cursor, self._oldest_ms = rows.key(), oldest_ms
        else:
            rows.status()
            self._cursor, self._oldest_ms = b"", None
            self._next_pass_ms = oldest_ms + self._age_ms + self._age_ms // _PASSES_PER_AGE
        return expired
