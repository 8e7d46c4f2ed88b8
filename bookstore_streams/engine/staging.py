"""What finished messages changed since the last commit, laid over the committed rows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from bookstore_streams.ports import Batch, Emission, StateStore, Writes

_ABSENT: Any = object()


class Staging:
    """Rows and events of finished messages: the next commit, and the one under way."""

    __slots__ = ("_flushing", "_store", "emissions", "rows")

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._flushing: Writes = {}
        self.rows: Writes = defaultdict(dict)
        self.emissions: list[Emission] = []

    def get(self, table: str, key: bytes) -> bytes | None:
        """A row as the next message must see it: finished, not only committed."""
        # Looking must not make tables: the batch of a commit under way is not to change.
        for staged in (self.rows, self._flushing):
            rows = staged.get(table)
            if rows is not None:
                value = rows.get(key, _ABSENT)
                if value is not _ABSENT:
                    return value  # type: ignore[no-any-return]
        return self._store.get(table, key)

    def put(self, table: str, key: bytes, value: bytes | None) -> None:
        """Stage one row; None deletes it."""
        self.rows[table][key] = value

    def merge(self, writes: dict[tuple[str, bytes], bytes | None], events: list[Emission]) -> None:
        """Stage everything a handler wrote and emitted."""
        rows = self.rows
        for (table, key), value in writes.items():
            rows[table][key] = value
        self.emissions += events

    def take(self, marks: dict[str, int]) -> Batch:
        """Begin a commit: what is staged goes into it, later messages stage anew above it."""
        batch = Batch(self.rows, self.emissions, marks)
        self._flushing = self.rows
        self.rows, self.emissions = defaultdict(dict), []
        return batch

    def landed(self) -> None:
        """The commit begun last is in the store now."""
        self._flushing = {}
