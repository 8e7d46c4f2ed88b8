"""Disks and stores: rows and changelog positions that outlive their worker, unless wiped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bookstore_streams.errors import StoreError
from bookstore_streams.ports import Writes

from .fault import Faults


@dataclass(slots=True)
class _Files:
    """What a disk holds of one partition."""

    tables: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    is_open: bool = False


class MemoryDisk:
    """The directory of one worker: outlives it, unless it is wiped."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Files] = {}

    def wipe(self, number: int | None = None) -> None:
        """Lose one partition's store, or all of them."""
        for each in list(self._partitions) if number is None else [number]:
            self._partitions.pop(each, None)

    def unlock(self) -> None:
        """Do what the system does for a process that died."""
        for files in self._partitions.values():
            files.is_open = False

    def files(self, number: int) -> _Files:
        """What is there of a partition, made when missing."""
        return self._partitions.setdefault(number, _Files())


class MemoryStore:
    """Rows of one partition; see `ports.StateStore`."""

    def __init__(self, files: _Files, tables: Iterable[str], faults: Faults) -> None:
        """Open the files.

        Raises:
            StoreError: somebody else has them open.
        """
        if files.is_open:
            raise StoreError("The store is open already.")
        files.is_open = True
        self.tables = frozenset(tables)
        for table in self.tables:
            files.tables.setdefault(table, {})
        self._files: _Files | None = files
        self._faults = faults

    def get(self, table: str, key: bytes) -> bytes | None:
        """One row, None when there is none."""
        self._faults.check(f"get {table}")
        return self._table(table).get(key)

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows in key order whose key begins with `prefix`, from `start` on where given."""
        self._faults.check(f"scan {table}")
        rows = self._table(table)
        first = prefix if start is None else max(start, prefix)
        keys = sorted(key for key in rows if key >= first and key.startswith(prefix))
        return iter([(key, rows[key]) for key in keys])

    def position(self, table: str) -> int:
        """Offset of the first changelog record of `table` that is not in here yet."""
        return self._opened().positions.get(table, 0)

    def apply(self, writes: Writes, positions: Mapping[str, int]) -> None:
        """Write rows and positions, all or nothing."""
        self._faults.check("apply")
        for table, rows in writes.items():
            kept = self._table(table)
            for key, value in rows.items():
                if value is None:
                    kept.pop(key, None)
                else:
                    kept[key] = value
        self._opened().positions.update(positions)

    def reset(self) -> None:
        """Empty the store."""
        files = self._opened()
        for rows in files.tables.values():
            rows.clear()
        files.positions.clear()

    def close(self) -> None:
        """Give the files back."""
        if self._files is not None and not self._faults.is_dead:
            self._files.is_open = False
        self._files = None

    def _opened(self) -> _Files:
        if self._files is None:
            raise StoreError("The store is closed.")
        return self._files

    def _table(self, table: str) -> dict[bytes, bytes]:
        rows = self._opened().tables.get(table)
        if rows is None:
            raise StoreError(f"Table {table!r} is not declared.")
        return rows
