"""Faust tables whose rows live in the engine: staged by handlers, committed with the offset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import faust
import orjson
from faust.stores.base import Store
from faust.tables.manager import TableManager

from bookstore_streams.engine.unit_of_work import Context, current
from bookstore_streams.errors import UnitOfWorkError

if TYPE_CHECKING:
    from .app import App


class EngineStore(Store):  # type: ignore[type-arg]
    """What Faust takes for the table's store. It owns nothing: it shows the engine's rows."""

    app: App
    table: TransactionalTable

    def __getitem__(self, key: str) -> Any:
        raw = self.app.engine.get(self.table_name, self.table.row_key(key))
        if raw is None:
            raise KeyError(key)
        return self.table.row_value(raw)

    def __setitem__(self, key: str, value: Any) -> None:
        self.table[key] = value

    def __delitem__(self, key: str) -> None:
        del self.table[key]

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        return self.app.engine.get(self.table_name, self.table.row_key(key)) is not None

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.table.committed_rows())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def persisted_offset(self, tp: Any) -> None:
        """Faust recovers nothing here, so it has no offset to know."""

    def reset_state(self) -> None:
        """Nothing is kept here."""

    def apply_changelog_batch(
        self, batch: Iterable[Any], to_key: Callable[..., Any], to_value: Callable[..., Any]
    ) -> None:
        """Never called: Faust does not subscribe to the changelog."""
        raise NotImplementedError("The engine restores its tables itself.")

    async def backup_partition(
        self, tp: Any, flush: bool = True, purge: bool = False, keep: int = 1
    ) -> None:
        """Not needed: the changelog is the backup."""
        raise NotImplementedError("The changelog is the backup of a transactional table.")

    def restore_backup(self, tp: Any, latest: bool = True, backup_id: int = 0) -> None:
        """Not needed: the changelog is the backup."""
        raise NotImplementedError("The changelog is the backup of a transactional table.")


class TransactionalTable(faust.Table):  # type: ignore[type-arg]
    """A table that changes once per message, in the same step as everything else it does.

    Keys are text, values what JSON holds. Inside a handler a read sees the handler's own
    writes and those of every finished message; what it gives is a copy, so a changed row
    must be assigned back. Outside a handler reads see committed rows of this worker's
    partitions, and writes are refused.
    """

    app: App

    def __init__(
        self,
        app: App,
        *,
        rows_expire_after_ms: int | None = None,
        row_key: Callable[[str], bytes] = str.encode,
        key_prefix: Callable[[str], bytes] | None = None,
        key_text: Callable[[bytes], str] = bytes.decode,
        row_value: Callable[[bytes], Any] = orjson.loads,
        **kwargs: Any,
    ) -> None:
        """Declare the table.

        Args:
            app: that owns the table.
            rows_expire_after_ms: age after which rows may be dropped, here and in the
                changelog; None keeps them until they are deleted.
            row_key: text of a key -> its bytes in the store.
            key_prefix: beginning of a text -> what the bytes of all such keys begin with, so
                that views need not read the whole table. None: the same as `row_key` where
                that is the default, else nothing.
            key_text: the other way round; what views show.
            row_value: bytes of a row -> what views and handlers read.
            kwargs: what `faust.Table` takes.
        """
        super().__init__(app, **kwargs)
        self.rows_expire_after_ms = rows_expire_after_ms
        self.row_key = row_key
        self.key_prefix = key_prefix or (str.encode if row_key is str.encode else _no_prefix)
        self.key_text = key_text
        self.row_value = row_value

    def committed_rows(
        self, prefix: bytes = b"", start: bytes | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Rows of this worker's partitions as text and value; in key order within a partition."""
        for key, raw in self.app.engine.scan(self.name, prefix, start):
            yield self.key_text(key), self.row_value(raw)

    def __getitem__(self, key: str) -> Any:
        raw = self._read(key)
        return self.__missing__(key) if raw is None else self.row_value(raw)

    def __setitem__(self, key: str, value: Any) -> None:
        self._unit_of_work().put(self.name, self.row_key(key), orjson.dumps(value))

    def __delitem__(self, key: str) -> None:
        context = self._unit_of_work()
        if self._read(key) is None:
            raise KeyError(key)
        context.put(self.name, self.row_key(key), None)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._read(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The row, or `default`; the table's own default factory is not asked."""
        raw = self._read(key)
        return default if raw is None else self.row_value(raw)

    def pop(self, key: str, *default: Any) -> Any:
        """Delete a row and return it."""
        raw = self._read(key)
        if raw is None:
            if default:
                return default[0]
            raise KeyError(key)
        del self[key]
        return self.row_value(raw)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The row; written with `default` first where there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Write several rows."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def clear(self) -> None:
        """Refused: a handler changes rows, not tables."""
        raise UnitOfWorkError(f"Table {self.name!r} cannot be cleared at once; delete its rows.")

    def popitem(self) -> tuple[str, Any]:
        """Refused: which row it would be depends on the worker."""
        raise UnitOfWorkError(f"Table {self.name!r} has no last row; pop a key.")

    def _read(self, key: str) -> bytes | None:
        context = current.get()
        if context is not None and context.is_open:
            return context.get(self.name, self.row_key(key))
        return self.app.engine.get(self.name, self.row_key(key))

    def _unit_of_work(self) -> Context:
        context = current.get()
        if context is None or not context.is_open:
            raise UnitOfWorkError(
                f"Table {self.name!r} can only be changed by a running handler of a consumer."
            )
        return context

    def _new_store(self) -> EngineStore:
        return EngineStore("memory://", self.app, self, table_name=self.name, loop=self.loop)


def _no_prefix(text: str) -> bytes:
    return b""


class TransactionalTableManager(TableManager):
    """Keeps transactional tables out of Faust's changelog subscription and recovery."""

    def add(self, table: Any) -> Any:
        """Add a table to the app."""
        super().add(table)
        if isinstance(table, TransactionalTable):
            # Known to `faust tables`, and to the assignor, which falls back to round-robin
            # and loses co-partitioning where it sees no table; but with a channel already
            # there Faust neither subscribes to the changelog nor recovers it.
            self._channels[table] = table.changelog_topic
        return table

    def transactional(self) -> list[TransactionalTable]:
        """The engine's tables, in order of declaration."""
        return [table for table in self.values() if isinstance(table, TransactionalTable)]
