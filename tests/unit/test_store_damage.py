"""RocksDB files damaged byte by byte: found, rebuilt, and never read as if they were true."""

from __future__ import annotations

import logging
import random
import shutil
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from bookstore_streams.core.inbox import Outcome, inbox_row
from bookstore_streams.errors import StoreError
from bookstore_streams.kafka.rocks import StoreResources
from bookstore_streams.kafka.store import LocalStore
from bookstore_streams.ports import Writes

HOUR_MS = 3_600_000
TABLES = ("payments", "inbox", "parked_keys")
COMMITS = 40
FLIPS = 25

Rows = dict[str, dict[bytes, bytes]]


@dataclass(frozen=True)
class Sample:
    """A store as a killed worker leaves it, and the rows after each commit."""

    path: Path
    after: list[Rows]


@pytest.fixture(scope="module")
def resources() -> StoreResources:
    return StoreResources(8 << 20, 4 << 20)


def open_store(path: Path, resources: StoreResources) -> LocalStore:
    return LocalStore(path, TABLES, resources, expiring={"inbox": HOUR_MS}, trusted_for_ms=HOUR_MS)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, resources: StoreResources) -> Sample:
    """Files of tables, a MANIFEST and a WAL with the last commits."""
    folder = tmp_path_factory.mktemp("store")
    store = open_store(folder / "live", resources)
    at_ms = time.time_ns() // 1_000_000
    rows: Rows = {table: {} for table in TABLES}
    after = [rows]
    for commit in range(1, COMMITS + 1):
        changed = {
            table: {
                b"%b-%d" % (table.encode(), (commit * 7 + n) % 50): orjson.dumps(
                    inbox_row(Outcome.APPLIED, at_ms, None, "orders", 0, commit)
                )
                for n in range(4)
            }
            for table in TABLES
        }
        writes: Writes = {table: dict(of_table) for table, of_table in changed.items()}
        store.apply(writes, dict.fromkeys(TABLES, commit))
        rows = {table: rows[table] | changed[table] for table in TABLES}
        after.append(rows)
        if commit in (15, 30):
            for family in store._families.values():
                family.flush()
    shutil.copytree(store.path, folder / "killed")
    store.close()
    return Sample(folder / "killed", after)


@pytest.fixture
def damaged(tmp_path: Path, sample: Sample) -> Callable[[], Path]:
    """A fresh copy of the sample, to be damaged."""

    def copy() -> Path:
        path = tmp_path / "partition-0"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(sample.path, path)
        return path

    return copy


def outcome(path: Path, sample: Sample, resources: StoreResources) -> str:
    """Open and read everything; fails where what was read never was the state."""
    store = open_store(path, resources)
    try:
        commit = store.position("payments")
        assert {store.position(table) for table in TABLES} == {commit}
        scanned = {table: dict(store.scan(table)) for table in TABLES}
        read = {
            table: {key: raw for key in sample.after[-1][table] if (raw := store.get(table, key))}
            for table in TABLES
        }
    except StoreError:
        store.close()
        store = open_store(path, resources)
        assert store.position("payments") == 0
        assert list(store.scan("payments")) == []
        return "found by a read"
    finally:
        store.close()
    assert scanned == read == sample.after[commit]
    return {0: "rebuilt", COMMITS: "whole"}.get(commit, "an earlier commit")


def files(path: Path, pattern: str) -> list[Path]:
    found = sorted(path.glob(pattern))
    assert found
    return found


def test_what_a_killed_worker_leaves_is_whole(
    damaged: Callable[[], Path], sample: Sample, resources: StoreResources
) -> None:
    assert outcome(damaged(), sample, resources) == "whole"


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("*.sst", "anywhere"),
        ("*.sst", "beginning"),
        ("*.sst", "footer"),
        ("MANIFEST-*", "anywhere"),
        ("CURRENT", "anywhere"),
        ("*.log", "anywhere"),
        ("OPTIONS-*", "anywhere"),
    ],
)
def test_a_flipped_byte_is_never_read_as_if_it_were_true(
    damaged: Callable[[], Path],
    sample: Sample,
    resources: StoreResources,
    pattern: str,
    place: str,
) -> None:
    """Goal: whatever byte is flipped, what is read was the state after some commit.

    `scan` and `get` of every row are compared with the rows after the commit that the
    positions tell; else the damage is said, and the next opening begins from nothing.
    """
    draw = random.Random(f"{pattern} {place}")
    seen = set()
    for _ in range(FLIPS):
        path = damaged()
        file = draw.choice([each for each in files(path, pattern) if each.stat().st_size])
        raw = bytearray(file.read_bytes())
        where = {
            "anywhere": draw.randrange(len(raw)),
            "beginning": draw.randrange(min(200, len(raw))),
            "footer": len(raw) - 1 - draw.randrange(min(53, len(raw))),
        }[place]
        raw[where] ^= 1 << draw.randrange(8)
        file.write_bytes(raw)
        seen.add(outcome(path, sample, resources))
    allowed = {
        "*.log": {"an earlier commit", "whole", "rebuilt"},
        "OPTIONS-*": {"whole"},
    }
    assert seen <= allowed.get(pattern, {"rebuilt", "found by a read", "whole"})


@pytest.mark.parametrize("size", ["zero", "half", "all but one byte"])
@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT", "*.log"])
def test_a_cut_file_is_never_read_as_if_it_were_true(
    damaged: Callable[[], Path],
    sample: Sample,
    resources: StoreResources,
    pattern: str,
    size: str,
) -> None:
    count = len(files(sample.path, pattern))
    for number in range(count):
        path = damaged()
        file = files(path, pattern)[number]
        whole = file.stat().st_size
        with file.open("r+b") as raw:
            raw.truncate(
                {"zero": 0, "half": whole // 2, "all but one byte": max(0, whole - 1)}[size]
            )
        found = outcome(path, sample, resources)
        allowed = {"*.log": {"an earlier commit", "whole"}}
        assert found in allowed.get(pattern, {"rebuilt", "found by a read", "whole"}), file.name


def test_a_manifest_cut_anywhere_is_never_read_as_if_it_were_true(
    damaged: Callable[[], Path], sample: Sample, resources: StoreResources
) -> None:
    """A shorter MANIFEST opens without an error, with tables of different ages."""
    (file,) = files(sample.path, "MANIFEST-*")
    for size in range(0, file.stat().st_size, 37):
        path = damaged()
        with (path / file.name).open("r+b") as raw:
            raw.truncate(size)
        outcome(path, sample, resources)


def assert_said(caplog: pytest.LogCaptureFixture, path: Path) -> None:
    (message,) = [each for each in caplog.messages if "rebuilt" in each]
    assert str(path) in message
    assert "look after the disk" in message
    assert "\n" not in message


def test_an_empty_file_is_said_in_one_line(
    damaged: Callable[[], Path],
    sample: Sample,
    resources: StoreResources,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """RocksDB's own text has several."""
    path = damaged()
    for file in files(path, "*.sst"):
        file.write_bytes(b"")
    assert outcome(path, sample, resources) == "rebuilt"
    assert_said(caplog, path)


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "*.log"])
def test_a_record_that_looks_like_one_of_a_reused_file_does_not_freeze_the_worker(
    damaged: Callable[[], Path], sample: Sample, resources: StoreResources, pattern: str
) -> None:
    """RocksDB 9.8 would read for ever, with Python's lock in its hand."""
    file = max(files(sample.path, pattern), key=lambda each: each.stat().st_size)
    raw = file.read_bytes()
    kinds = [6]
    while kinds[-1] + 7 <= len(raw) and raw[kinds[-1]]:
        (length,) = struct.unpack_from("<H", raw, kinds[-1] - 2)
        kinds.append(kinds[-1] + 7 + length)
    for where in (kinds[1], kinds[len(kinds) // 2], kinds[-2]):
        path = damaged()
        changed = bytearray(raw)
        assert changed[where] in (1, 2)
        changed[where] |= 4
        (path / file.name).write_bytes(changed)
        assert outcome(path, sample, resources) == "rebuilt"


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_a_missing_file_is_found_at_opening_and_said_in_one_line(
    damaged: Callable[[], Path],
    sample: Sample,
    resources: StoreResources,
    caplog: pytest.LogCaptureFixture,
    pattern: str,
) -> None:
    for number in range(len(files(sample.path, pattern))):
        path = damaged()
        files(path, pattern)[number].unlink()
        caplog.clear()
        assert outcome(path, sample, resources) in ("rebuilt", "found by a read")
        assert_said(caplog, path)


def test_a_missing_current_is_found_where_there_is_no_log_either(
    damaged: Callable[[], Path],
    sample: Sample,
    resources: StoreResources,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """RocksDB would begin anew without a word."""
    path = damaged()
    for file in (*files(path, "*.log"), path / "CURRENT"):
        file.unlink()
    assert outcome(path, sample, resources) == "rebuilt"
    assert_said(caplog, path)


def test_a_missing_write_ahead_log_is_an_earlier_commit(
    damaged: Callable[[], Path], sample: Sample, resources: StoreResources
) -> None:
    """Recovery reads the rest from the changelogs: the positions went back with the rows."""
    path = damaged()
    for file in files(path, "*.log"):
        file.unlink()
    assert outcome(path, sample, resources) == "an earlier commit"


def test_an_older_file_in_the_place_of_a_newer_one_is_found(
    damaged: Callable[[], Path], sample: Sample, resources: StoreResources
) -> None:
    path = damaged()
    older, *_, newer = files(path, "*.sst")
    shutil.copy(older, newer)
    assert outcome(path, sample, resources) in ("rebuilt", "found by a read")


@pytest.mark.parametrize("read", ["scan", "get", "expiry"])
def test_damage_that_only_a_read_meets_is_found_by_it(
    tmp_path: Path, resources: StoreResources, read: str
) -> None:
    """An iterator just ends at a broken block: what it gave must not pass for the whole table."""
    path, at_ms = tmp_path / "partition-0", time.time_ns() // 1_000_000
    store = open_store(path, resources)
    row = orjson.dumps(inbox_row(Outcome.APPLIED, at_ms, "k" * 100, "orders", 0, 1))
    rows: dict[bytes, bytes | None] = {
        b"%06d" % n: row + random.Random(n).randbytes(100) for n in range(3_000)
    }
    store.apply({"inbox": rows}, {"inbox": 1})
    store._families["inbox"].flush()
    store.close()
    file = max(files(path, "*.sst"), key=lambda each: each.stat().st_size)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    store = open_store(path, resources)
    assert store.position("inbox") == 1
    more: Writes = {"inbox": {b"x%d" % n: row for n in range(2_000)}}
    reading: dict[str, Callable[[], object]] = {
        "scan": lambda: list(store.scan("inbox")),
        "get": lambda: [store.get("inbox", key) for key in rows],
        "expiry": lambda: store.apply(more, {}),
    }
    with pytest.raises(StoreError, match="rebuilt from the changelogs"):
        reading[read]()
    store.close()
    store = open_store(path, resources)
    assert store.position("inbox") == 0
    store.close()


def test_damage_found_by_a_commit_is_rebuilt_at_the_next_opening(
    damaged: Callable[[], Path],
    sample: Sample,
    resources: StoreResources,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compaction that meets a broken block lets the next write fail."""

    class Broken:
        def write(self, batch: object, options: object) -> None:
            raise Exception("Corruption: block checksum mismatch")

        def close(self) -> None:
            pass

    path = damaged()
    store = open_store(path, resources)
    database = store._db
    monkeypatch.setattr(store, "_db", Broken())
    with pytest.raises(StoreError, match="rebuilt from the changelogs"):
        store.apply({"payments": {b"a": b"1"}}, {"payments": COMMITS + 1})
    store._db = database
    store.close()
    assert outcome(path, sample, resources) == "rebuilt"


FULL_DISK = """
    import sys
    from pathlib import Path
    from bookstore_streams.errors import StoreError
    from bookstore_streams.kafka.rocks import StoreResources
    from bookstore_streams.kafka.store import LocalStore

    disk = Path(sys.argv[1])
    resources = StoreResources(8 << 20, 4 << 20)

    def opened():
        return LocalStore(disk / "partition-0", ["rows"], resources, expiring={},
                          trusted_for_ms=3_600_000)

    store, ballast = opened(), disk / "ballast"
    ballast.write_bytes(bytes(4 << 20))
    done, message = 0, ""
    for number in range(1_000):
        try:
            store.apply({"rows": {b"%d" % number: bytes(50_000)}}, {"rows": number + 1})
        except StoreError as error:
            message = str(error)
            break
        done = number + 1
    assert "is full" in message and "Nothing is lost" in message, message
    assert len(list(store.scan("rows"))) >= done  # reads go on
    store.close()
    try:
        with (disk / "more").open("wb") as rest:
            rest.write(bytes(16 << 20))
    except OSError:
        pass
    refusals = 0
    try:
        opened().close()  # room or not: it says so, and destroys nothing
    except StoreError as error:
        refusals += 1
        assert "is full" in str(error), error
    (disk / "more").unlink()
    ballast.unlink()
    store = opened()
    position = store.position("rows")
    assert position >= done > 0, (position, done)
    rows = dict(store.scan("rows"))
    assert sorted(map(int, rows)) == list(range(position)), (len(rows), position)
    store.apply({"rows": {b"last": b""}}, {"rows": position + 1})
    store.close()
    print("done", done, "refused", refusals)
"""


def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path) -> None:
    """Goal: a commit and an opening on a full disk fail clearly, and everything is there later.

    Method: a small file system of its own, in a namespace where this user may mount one.
    """
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        pytest.skip("needs Linux namespaces")
    mounted = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount: {mounted.stderr.decode()}")
    script = tmp_path.with_suffix(".py")
    script.write_text(textwrap.dedent(FULL_DISK))
    command = f'mount -t tmpfs -o size=12m none "{tmp_path}" && "$0" "{script}" "{tmp_path}"'
    ran = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command, sys.executable],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("done"), ran.stdout


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Keep the lines of one test only."""
    caplog.set_level(logging.WARNING)
    yield
    caplog.clear()
