"""One RocksDB per partition, a column family per table: always a committed prefix.

Nothing is written here before Kafka has committed it, and what one commit changed is
written in one batch together with the changelog positions. So whatever a crash leaves is
the state after some commit, and recovery reads forward from the stored positions.
"""

from __future__ import annotations

import gc
import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    FifoCompactOptions,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
)

from bookstore_streams.errors import StoreError
from bookstore_streams.ports import Writes

log = logging.getLogger(__name__)

_META = "_meta"
_AT_KEY = b"at_ms"
# No row key begins with this byte: they are UTF-8, or begin with a consumer's name.
_STAMP_KEY = b"\xff\xffstamp"
# RocksDB's errors come as plain exceptions: only their text tells damage, which the changelogs
# mend, from a lock or a full disk, which they do not.
_DAMAGE = ("Corruption", "No such file or directory", "not a valid", "does not match existing")
_UNLIMITED = 1 << 50


class StoreResources:
    """What the stores of one worker share: block cache and write buffer.

    Args:
        cache_bytes: of the block cache, indexes and filters included.
        write_buffer_bytes: of all memtables together.
    """

    def __init__(self, cache_bytes: int, write_buffer_bytes: int) -> None:
        # A hyper-clock cache: with indexes and filters in it an LRU one of the same size
        # cost 520 us a miss at ten million rows, this one 1.6.
        self.cache = Cache.new_hyper_clock_cache(cache_bytes, 0)
        self.write_buffer = WriteBufferManager.new_write_buffer_manager_with_cache(
            write_buffer_bytes, False, self.cache
        )


class LocalStore:
    """Rows of all tables of one partition.

    Attributes:
        path: of the partition's directory.
        tables: names of all tables.
    """

    def __init__(
        self,
        path: Path,
        tables: Iterable[str],
        resources: StoreResources,
        *,
        expiring: Mapping[str, int],
        trusted_for_ms: int,
    ) -> None:
        """Open the store, empty where there is none that can be trusted.

        Args:
            path: directory of the partition; made when missing.
            tables: names of all tables.
            resources: shared by the stores of this worker.
            expiring: table -> age in ms after which its rows may be dropped.
            trusted_for_ms: a store not written to for longer may have missed tombstones that
                compaction has removed since; it is emptied and rebuilt.

        Raises:
            StoreError: the directory cannot be used: locked, full, not writable.
        """
        self.path = path
        self._names = tuple(tables)
        self.tables = frozenset(self._names)
        self._resources = resources
        self._expiring = dict(expiring)
        self._db: Any = None
        self._families: dict[str, Any] = {}
        self._handles: dict[str, Any] = {}
        self._open()
        reason = self._reason_to_distrust(trusted_for_ms)
        if reason is not None:
            self.reset(reason)

    # -- rows -------------------------------------------------------------------------------

    def get(self, table: str, key: bytes) -> bytes | None:
        """One row, None when there is none."""
        try:
            return self._families[table].get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise StoreError(f"Table {table!r} in {self.path} cannot be read: {error}") from error

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows in key order whose key begins with `prefix`, from `start` on where given.

        Raises:
            StoreError: the data is damaged; an iterator of rocksdict would just end.
        """
        options = ReadOptions()  # kept until the end: the iterator only points to it
        rows = self._families[table].iter(options)
        rows.seek(prefix if start is None else max(start, prefix))
        while rows.valid():
            key = rows.key()
            if not key.startswith(prefix) or key == _STAMP_KEY:
                break
            yield key, rows.value()
            rows.next()
        try:
            rows.status()
        except Exception as error:
            raise StoreError(f"Table {table!r} in {self.path} cannot be read: {error}") from error

    def position(self, table: str) -> int:
        """Offset of the first changelog record of `table` that is not in here yet; 0 when new."""
        raw = self._families[_META].get(table.encode())
        return 0 if raw is None else int(raw)

    def apply(self, writes: Writes, positions: Mapping[str, int]) -> None:
        """Write table -> key -> value (None deletes) and the positions, all or nothing.

        Raises:
            StoreError: nothing was written: disk full, or the data is damaged.
        """
        batch = WriteBatch(raw_mode=True)
        put, handles = batch.put, self._handles
        for table, rows in writes.items():
            handle = handles[table]
            for key, value in rows.items():
                if value is None:
                    batch.delete(key, handle)
                else:
                    put(key, value, handle)
        meta = handles[_META]
        for table, offset in positions.items():
            put(table.encode(), b"%d" % offset, meta)
        now = b"%d" % (time.time_ns() // 1_000_000)
        put(_AT_KEY, now, meta)
        self._stamp += 1
        stamp = b"%d" % self._stamp
        for handle in handles.values():
            put(_STAMP_KEY, stamp, handle)
        try:
            self._db.write(batch)
        except Exception as error:
            raise StoreError(f"{self.path} cannot be written: {error}") from error

    # -- life -------------------------------------------------------------------------------

    def reset(self, reason: str) -> None:
        """Empty the store, so that the changelogs fill it again from their beginning."""
        log.warning("%s is emptied and rebuilt from the changelogs: %s", self.path, reason)
        self.close()
        shutil.rmtree(self.path)
        self._open()

    def close(self) -> None:
        """Give the directory back; it can be opened again at once."""
        # RocksDB keeps its LOCK until the last column family and handle is gone.
        self._families = {}
        self._handles = {}
        if self._db is not None:
            self._db.close()
        self._db = None
        gc.collect()

    def _open(self) -> None:
        try:
            try:
                self._open_database()
            except Exception as error:
                if not any(word in str(error) for word in _DAMAGE):
                    raise
                log.warning("%s is damaged and rebuilt from the changelogs: %s", self.path, error)
                self.close()
                shutil.rmtree(self.path)
                self._open_database()
        except Exception as error:
            self.close()
            raise StoreError(f"The store {self.path} cannot be opened: {error}") from error
        raw = self._families[_META].get(_STAMP_KEY)
        self._stamp = 0 if raw is None else int(raw)

    def _open_database(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        names = {*self._names, _META}
        if (self.path / "CURRENT").exists():
            names |= set(Rdict.list_cf(str(self.path)))
        self._db = Rdict(
            str(self.path),
            options=self._options(),
            column_families={
                name: self._expiring_options() if name in self._expiring else self._options()
                for name in names
            },
        )
        for name in (*self._names, _META):
            self._families[name] = self._db.get_column_family(name)
            self._handles[name] = self._db.get_column_family_handle(name)
        for name, age_ms in self._expiring.items():
            # Reopening sets the age back to 30 days, so it is set after each.
            self._families[name].set_options(
                {
                    "ttl": str(max(1, age_ms // 1000)),
                    "compaction_options_fifo": (
                        f"{{max_table_files_size={_UNLIMITED};allow_compaction=true}}"
                    ),
                }
            )

    def _options(self) -> Options:
        table = BlockBasedOptions()
        table.set_block_cache(self._resources.cache)
        table.set_bloom_filter(10, False)
        table.set_cache_index_and_filter_blocks(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self._resources.write_buffer)
        options.set_write_buffer_size(1 << 20)
        options.set_arena_block_size(32 << 10)
        options.set_max_total_wal_size(16 << 20)
        options.set_keep_log_file_num(2)
        return options

    def _expiring_options(self) -> Options:
        """Old files of such a table are dropped whole: no deletes, no scan."""
        fifo = FifoCompactOptions()
        fifo.max_table_files_size = _UNLIMITED
        options = self._options()
        options.set_compaction_style(DBCompactionStyle.fifo())
        options.set_fifo_compaction_options(fifo)
        return options

    def _reason_to_distrust(self, trusted_for_ms: int) -> str | None:
        stamps = {
            name: int(raw)
            for name, family in self._families.items()
            if (raw := family.get(_STAMP_KEY)) is not None
        }
        if not stamps:
            return None
        if len(set(stamps.values())) > 1 or len(stamps) < len(self._names) + 1 - len(
            self._expiring
        ):
            # A cut MANIFEST opens silently with tables of different ages.
            return f"its tables are of different commits ({stamps})"
        raw = self._families[_META].get(_AT_KEY)
        age_ms = time.time_ns() // 1_000_000 - int(raw or 0)
        if age_ms > trusted_for_ms:
            return f"it was last written {age_ms // 3_600_000} hours ago"
        return None
