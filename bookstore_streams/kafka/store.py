"""One RocksDB per partition, a column family per table: always a committed prefix.

Nothing is written here before Kafka has committed it, and what one commit changed is
written in one batch together with the changelog positions. So whatever a crash leaves is
the state after some commit, and recovery reads forward from the stored positions. What
cannot be trusted is never read: it is emptied, and the changelogs fill it again.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rocksdict import Rdict, ReadOptions, WriteBatch, WriteOptions

from bookstore_streams.errors import StoreError
from bookstore_streams.ports import Writes

from .expiry import Expiry
from .rocks import (
    WRITE_BUFFER_BYTES,
    StoreResources,
    endless_file,
    explained,
    in_one_line,
    is_damage,
    is_in_use,
    missing_log,
    write_ahead_logs,
)

log = logging.getLogger(__name__)

_META = "_meta"
# Keys of the family of positions that are no table's name: those are text.
_AT_KEY = b"\xffat_ms"
_ORIGIN = b"\xfforigin:"
# No row key begins with this byte: they are UTF-8, or begin with a consumer's name.
_STAMP_KEY = b"\xff\xffstamp"
# Says that the rows below cannot be trusted, and why.
_MARKER = "DAMAGED"
# What RocksDB leaves, and needs, without a CURRENT file: nothing that tells of rows.
_NO_DATA = ("LOCK", "LOG", "IDENTITY", "OPTIONS")
# From so many records on, restoring writes no log, larger files, and merges them afterwards.
_BULK_RECORDS_MIN = 20_000
_BULK = {
    "disable_auto_compactions": "true",
    "write_buffer_size": str(4 << 20),
    "max_write_buffer_number": "4",
}
_USUAL = {
    "disable_auto_compactions": "false",
    "write_buffer_size": str(WRITE_BUFFER_BYTES),
    "max_write_buffer_number": "2",
}
# A clock that was this far ahead when the store was written tells nothing of its age.
_AHEAD_MS_MAX = 600_000


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
        self._positions: dict[str, int] = {}
        self._expiries: tuple[Expiry, ...] = ()
        self._stamp = 0
        self._logs: set[int] = set()
        self._origins: dict[str, bytes] = {}
        self._restore_options: WriteOptions | None = None
        self._open()
        try:
            reason = self._reason_to_distrust(trusted_for_ms)
        except StoreError as error:  # damaged where only a read finds it
            reason = str(error)
        if reason is not None:
            self.reset(reason, keep=False)

    # -- rows -------------------------------------------------------------------------------

    def get(self, table: str, key: bytes) -> bytes | None:
        """One row, None when there is none.

        Raises:
            StoreError: the data is damaged.
        """
        try:
            return self._families[table].get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise self._failed(error, "read") from error

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
            raise self._failed(error, "read") from error

    def position(self, table: str) -> int:
        """Offset of the first changelog record of `table` that is not in here yet; 0 when new."""
        return self._positions.get(table, 0)

    def apply(self, writes: Writes, positions: Mapping[str, int]) -> None:
        """Write table -> key -> value (None deletes) and the positions, all or nothing.

        Raises:
            StoreError: nothing was written: the disk is full, the data is damaged, or a
                changelog is behind the stored position, so it was made anew meanwhile.
        """
        for table, offset in positions.items():
            if offset < self._positions.get(table, 0):
                raise StoreError(
                    f"The changelog of {table!r} is at offset {offset} and {self.path} at "
                    f"{self._positions[table]}: it was deleted and made anew under the worker."
                )
        now_ms = time.time_ns() // 1_000_000
        batch = self._batch(writes, positions)
        batch.put(_AT_KEY, b"%d" % now_ms, self._handles[_META])
        for expiry in self._expiries:
            written = writes.get(expiry.table, {})
            try:
                expired = expiry.step(now_ms, len(written))
            except Exception as error:
                raise self._failed(error, "read") from error
            for key in expired:
                if key not in written:
                    batch.delete(key, self._handles[expiry.table])
        self._write(batch, positions)

    def begin_restore(self, records: int) -> None:
        """Prepare for what the changelogs hold.

        Args:
            records: about how many will come; for many of them the disk is written in another
                way, half as dear. A crash on the way then leaves tables of different ages,
                which the next opening notices, and begins anew.
        """
        if records >= _BULK_RECORDS_MIN:
            self._restore_options = WriteOptions()
            self._restore_options.disable_wal = True  # type: ignore[method-assign, assignment]
            self._set_options(_BULK)

    def restore(self, writes: Writes, positions: Mapping[str, int]) -> None:
        """Write what was read from the changelogs; kept for good once `end_restore` returns.

        Raises:
            StoreError: nothing was written: the disk is full, or the data is damaged.
        """
        self._write(self._batch(writes, positions), positions, self._restore_options)

    def end_restore(self) -> None:
        """Bring what was restored to the disk; to be called before the first commit.

        Releases Python's lock while it waits for the disk, and may run in another thread.

        Raises:
            StoreError: the disk is full.
        """
        try:
            if self._restore_options is not None:
                for family in self._families.values():
                    family.flush()
                self._restore_options = None
                self._set_options(_USUAL)
        except Exception as error:
            raise self._failed(error, "written") from error
        batch = self._batch({}, {})
        batch.put(_AT_KEY, b"%d" % (time.time_ns() // 1_000_000), self._handles[_META])
        self._write(batch, {})
        self._expire_from_the_beginning()

    def _set_options(self, options: Mapping[str, str]) -> None:
        for family in self._families.values():
            family.set_options(dict(options))

    def _batch(self, writes: Writes, positions: Mapping[str, int]) -> Any:
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
        stamp = b"%d" % (self._stamp + 1)
        for handle in handles.values():
            put(_STAMP_KEY, stamp, handle)
        return batch

    def _write(
        self, batch: Any, positions: Mapping[str, int], options: WriteOptions | None = None
    ) -> None:
        try:
            self._db.write(batch, options)
        except Exception as error:
            raise self._failed(error, "written") from error
        self._stamp += 1
        self._positions.update(positions)

    def _failed(self, error: Exception, doing: str) -> StoreError:
        """Our error; damage is remembered on the disk, so that the next opening rebuilds."""
        if is_damage(error):
            try:
                (self.path / _MARKER).write_text(in_one_line(error))
            except OSError:
                with contextlib.suppress(OSError):
                    (self.path / "CURRENT").unlink(missing_ok=True)
        return explained(error, self.path, doing)

    # -- life -------------------------------------------------------------------------------

    def follow(self, changelogs: Mapping[str, str]) -> None:
        """Be the copy of these changelogs: emptied first where it was made from others.

        Args:
            changelogs: table -> id of its changelog topic, which another topic of the same
                name does not have; empty where the broker tells none.

        Raises:
            StoreError: it cannot be read or written.
        """
        # A directory that was moved to another partition's place tells of the wrong one, too.
        self._origins = {
            table: f"{each} {self.path.name}".encode() for table, each in changelogs.items()
        }
        others = []
        for table, origin in self._origins.items():
            known = self._meta(_ORIGIN + table.encode())
            if known != origin and (known is not None or self.position(table)):
                others.append(table)
        if others:
            self.reset(
                "it was not written from the changelogs that are there now "
                f"({', '.join(sorted(others))}): they were deleted and made anew since, or it "
                "belongs to another partition"
            )
        else:
            self._write_origins()

    def _write_origins(self) -> None:
        batch = self._batch({}, {})
        meta = self._handles[_META]
        for table, origin in self._origins.items():
            batch.put(_ORIGIN + table.encode(), origin, meta)
        if self._meta(_AT_KEY) is None:
            batch.put(_AT_KEY, b"%d" % (time.time_ns() // 1_000_000), meta)
        self._write(batch, {})

    def reset(self, reason: str, *, keep: bool = True) -> None:
        """Empty the store, so that the changelogs fill it again from their beginning.

        Args:
            reason: for the log.
            keep: whether what it held is put aside, because no changelog can bring it back.
        """
        self.close()
        try:
            self._clear(reason, keep)
        except OSError as error:
            raise explained(error, self.path, "emptied") from error
        self._open()
        if self._origins:
            self._write_origins()

    def _clear(self, reason: str, keep: bool) -> None:
        if keep:
            aside = self.path.with_name(f"{self.path.name}.replaced-{time.time_ns() // 1_000_000}")
            self.path.rename(aside)
            log.warning(
                "%s is emptied and rebuilt from the changelogs: %s. What it held is kept in %s; "
                "delete that when nobody needs it.",
                self.path,
                reason,
                aside,
            )
        else:
            self._remove(reason)

    def close(self) -> None:
        """Give the directory back; it can be opened again at once."""
        # RocksDB keeps its LOCK until the last column family and handle is gone.
        self._families = {}
        self._handles = {}
        self._expiries = ()
        self._restore_options = None
        database, self._db = self._db, None
        if database is not None:
            try:
                database.close()
            except Exception as error:  # what is committed is in its write-ahead log, or in Kafka
                log.warning("%s was not closed cleanly: %s", self.path, error)

    def _open(self) -> None:
        try:
            reason = self._visible_damage()
            if reason is not None:
                self._remove(reason)
            try:
                self._open_database()
            except Exception as error:
                self.close()
                if is_in_use(error):
                    gc.collect()  # perhaps only by an iterator of ours that nobody has let go
                elif is_damage(error):
                    self._remove(f"it is damaged ({in_one_line(error)}); look after the disk")
                else:
                    raise
                self._open_database()
        except Exception as error:
            self.close()
            raise explained(error, self.path, "opened") from error
        self._expire_from_the_beginning()

    def _expire_from_the_beginning(self) -> None:
        self._expiries = tuple(
            Expiry(table, age_ms, self._families[table].iter)
            for table, age_ms in self._expiring.items()
        )

    def _visible_damage(self) -> str | None:
        """What can be seen before RocksDB looks: it would begin anew without a word."""
        marker = self.path / _MARKER
        if marker.exists():
            return f"it was found damaged ({marker.read_text()}); look after the disk"
        if self.path.exists() and not (self.path / "CURRENT").exists():
            left = sorted(f.name for f in self.path.iterdir() if not f.name.startswith(_NO_DATA))
            if left:
                return f"its file CURRENT is missing beside {left[0]}; look after the disk"
        endless = endless_file(self.path)
        if endless is not None:
            return f"its file {endless} is damaged; look after the disk"
        return None

    def _remove(self, reason: str) -> None:
        log.warning("%s is emptied and rebuilt from the changelogs: %s", self.path, reason)
        shutil.rmtree(self.path)

    def _open_database(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._logs = write_ahead_logs(self.path)
        names = {*self._names, _META}
        if (self.path / "CURRENT").exists():
            names |= set(Rdict.list_cf(str(self.path)))
        self._db = Rdict(
            str(self.path),
            options=self._resources.options(),
            column_families={name: self._resources.options() for name in names},
        )
        for name in (*self._names, _META):
            self._families[name] = self._db.get_column_family(name)
            self._handles[name] = self._db.get_column_family_handle(name)
        stamp = self._families[_META].get(_STAMP_KEY)
        self._stamp = 0 if stamp is None else int(stamp)
        self._positions = {
            name: int(raw)
            for name in self._names
            if (raw := self._families[_META].get(name.encode())) is not None
        }

    def _meta(self, key: bytes) -> bytes | None:
        try:
            return self._families[_META].get(key)  # type: ignore[no-any-return]
        except Exception as error:
            raise self._failed(error, "read") from error

    def _reason_to_distrust(self, trusted_for_ms: int) -> str | None:
        stamps = {name: self._stamp_of(name) for name in self._families}
        known = {stamp for stamp in stamps.values() if stamp is not None}
        if not known:
            return None
        # A table without a stamp is one that this version of the app has added.
        if len(known) > 1 or any(
            stamp is None and (name == _META or self.position(name))
            for name, stamp in stamps.items()
        ):
            # A cut MANIFEST opens silently with tables of different ages.
            return f"its tables are of different commits ({stamps}); look after the disk"
        missing = missing_log(self.path, self._logs, self._families)
        if missing is not None:
            return f"{missing}; look after the disk"
        age_ms = time.time_ns() // 1_000_000 - int(self._meta(_AT_KEY) or 0)
        if age_ms > trusted_for_ms:
            return (
                f"it was last written {age_ms // 3_600_000} hours ago, longer than the changelogs "
                "keep what was deleted (BOOKSTORE_STORE_CHANGELOG_RETENTION_MS)"
            )
        if age_ms < -_AHEAD_MS_MAX:
            return "it was written with the clock far ahead, so its age is not known"
        return None

    def _stamp_of(self, name: str) -> int | None:
        try:
            raw = self._families[name].get(_STAMP_KEY)
        except Exception as error:
            raise self._failed(error, "read") from error
        return None if raw is None else int(raw)
