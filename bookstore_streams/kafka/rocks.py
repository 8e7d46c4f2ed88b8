"""How RocksDB is set up here, what its errors mean, and what the stores of a worker share."""

from __future__ import annotations

import re
import resource
import struct
from collections.abc import Collection
from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, Options, WriteBufferManager

from bookstore_streams.errors import StoreError

# RocksDB's errors come as plain exceptions: only their text tells damage, which the changelogs
# mend, from a lock or a full disk, which they do not.
_DAMAGE = (
    "Corruption",
    "Input/output error",
    "No such file or directory",
    "not a valid",
    "does not match existing",
    "Not implemented",
    "Unknown Footer version",
)
_DISK_FULL = ("No space left on device", "Disk quota exceeded", "ENOSPC")
_IN_USE = ("lock hold by current process", "Resource temporarily unavailable")
_NOT_ALLOWED = ("Permission denied", "Read-only file system", "Operation not permitted")

# RocksDB's own log, at every opening. What it recovered is told nowhere else.
_MANIFEST = re.compile(r"Recovered from manifest file:.*?manifest_file_number is (\d+)")
_FAMILY = re.compile(r"Column family \[(.+)\] \(ID \d+\), log number is (\d+)")

# Of RocksDB's log format, in which a MANIFEST and a write-ahead log are written.
_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")  # checksum, length, type
_RECYCLED_TYPES = range(5, 9)

#: Rows of one table that are held in memory before they become a file.
WRITE_BUFFER_BYTES = 1 << 20
# Files that one store keeps open; further ones are opened when they are read.
_OPEN_FILES_MAX = 128
# What 64 stores, their logs and some thousand connections need at most.
_FILES_WANTED = 16_384


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
        _allow_files(_FILES_WANTED)

    def options(self) -> Options:
        """Of a store, and of each of its column families."""
        table = BlockBasedOptions()
        table.set_block_cache(self.cache)
        table.set_bloom_filter(10, False)
        table.set_cache_index_and_filter_blocks(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_manager(self.write_buffer)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        # Where a write waits for compactions it keeps Python's lock, and the worker stands
        # still; more files at once only make reads a little slower.
        options.set_level_zero_slowdown_writes_trigger(200)
        options.set_level_zero_stop_writes_trigger(400)
        options.set_arena_block_size(32 << 10)
        options.set_max_total_wal_size(16 << 20)
        options.set_max_manifest_file_size(4 << 20)
        options.set_max_open_files(_OPEN_FILES_MAX)
        options.set_keep_log_file_num(2)
        # Opening would look into every file; only the picking of compactions would gain.
        options.set_skip_stats_update_on_db_open(True)
        return options


def is_damage(error: Exception) -> bool:
    """Whether an error of RocksDB tells that what lies on the disk cannot be right."""
    text = str(error)
    return any(word in text for word in _DAMAGE) and not _is_any(text, _DISK_FULL)


def endless_file(path: Path) -> str | None:
    """Name of a damaged file in which RocksDB would read for ever; to be asked before opening.

    One flipped bit makes the type of a record that of a log file used again, which ours never
    are. RocksDB 9.8 then spins, and rocksdict keeps Python's lock meanwhile, so that the
    whole worker would stand still.
    """
    for file in (*path.glob("MANIFEST-*"), *path.glob("*.log")):
        raw = file.read_bytes()
        for block in range(0, len(raw), _BLOCK_BYTES):
            at, end = block, min(block + _BLOCK_BYTES, len(raw))
            while at + _HEADER.size <= end:
                _, length, kind = _HEADER.unpack_from(raw, at)
                if kind in _RECYCLED_TYPES:
                    return file.name
                if kind == length == 0:  # the rest of the block is not written yet
                    break
                at += _HEADER.size + length
    return None


def write_ahead_logs(path: Path) -> set[int]:
    """Numbers of the write-ahead logs of a store; to be asked before it is opened."""
    return {int(file.stem) for file in path.glob("*.log") if file.stem.isdigit()}


def missing_log(path: Path, logs: Collection[int], families: Collection[str]) -> str | None:
    """What tells that rows are missing although the store has just opened without an error.

    A MANIFEST that lost its end knows neither the last files of rows nor that the
    write-ahead logs of those rows are gone, and RocksDB replays what logs there are. Then
    the newest commits are there and some before them are not. But the first log that a
    family needs must be there wherever a later one is.

    Args:
        path: of the store.
        logs: what `write_ahead_logs` told before it was opened.
        families: that every commit writes to.
    """
    told = (path / "LOG").read_text(errors="replace")
    manifest = _MANIFEST.search(told)
    if manifest is None or not logs:
        return None  # it is new, or nothing was replayed
    # The first log of a process has the number before that of its MANIFEST.
    first = int(manifest[1]) - 1
    for family, number in _FAMILY.findall(told, manifest.end()):
        needed = int(number)
        last = max(needed, first)
        if (
            family in families
            and not any(needed <= log <= last for log in logs)
            and any(log > last for log in logs)
        ):
            return f"commits of {family!r} are missing between its files and its write-ahead log"
    return None


def is_in_use(error: Exception) -> bool:
    """Whether somebody, perhaps this process, has the store open."""
    return _is_any(str(error), _IN_USE)


def explained(error: Exception, path: Path, doing: str) -> StoreError:
    """Our error for one of RocksDB or the file system; raise it ``from`` the original.

    Args:
        error: as it came.
        path: of the store.
        doing: what was tried: "opened", "read", "written".
    """
    text = in_one_line(error)
    if _is_any(text, _DISK_FULL):
        return StoreError(
            f"The disk of {path} is full, so it cannot be {doing}. Make room, or set "
            "BOOKSTORE_DATA_DIR to another disk and restart. Nothing is lost: what is committed "
            "is in Kafka, and the partition goes on by itself once there is room."
        )
    if is_in_use(error):
        return StoreError(
            f"The store {path} cannot be {doing}: another process has it open. Give each worker "
            "a directory of its own with BOOKSTORE_DATA_DIR."
        )
    if _is_any(text, _NOT_ALLOWED):
        return StoreError(
            f"The store {path} cannot be {doing} ({text}). Let the worker's user write there, or "
            "set BOOKSTORE_DATA_DIR to another directory."
        )
    if is_damage(error):
        return StoreError(
            f"The store {path} is damaged ({text}). It is emptied and rebuilt from the changelogs "
            "when the partition is opened again, by itself. Look after the disk."
        )
    return StoreError(f"The store {path} cannot be {doing}: {text}")


def in_one_line(error: Exception) -> str:
    """What RocksDB says, without its line breaks."""
    return " ".join(str(error).split())


def _is_any(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _allow_files(wanted: int) -> None:
    """Raise the number of files that this process may open, as far as it may do so."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    if now != resource.RLIM_INFINITY and now < goal:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, most))
