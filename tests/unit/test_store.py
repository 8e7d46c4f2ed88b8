"""The local store: what it keeps, what it lets go, and when it does not believe itself."""

from __future__ import annotations

import itertools
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from bookstore_streams.core.inbox import Outcome
from bookstore_streams.core.inbox import inbox_row as core_row
from bookstore_streams.errors import StoreError
from bookstore_streams.kafka.rocks import StoreResources
from bookstore_streams.kafka.store import LocalStore
from bookstore_streams.ports import Writes

HOUR_MS = 3_600_000
TABLES = ("payments", "inbox", "parked_keys")
ONE: Writes = {"payments": {b"a": b"1"}}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def inbox_row(at_ms: int, outcome: str = "applied") -> bytes:
    return orjson.dumps(core_row(Outcome(outcome), at_ms, '"at_ms":1,', "orders", 3, 5))


@pytest.fixture(scope="module")
def resources() -> StoreResources:
    return StoreResources(8 << 20, 4 << 20)


@pytest.fixture
def opened(tmp_path: Path, resources: StoreResources) -> Iterator[Callable[..., LocalStore]]:
    """Open the store of partition 3, or another; the one opened before is closed."""
    last: list[LocalStore] = []

    def open_it(
        name: str = "partition-3", tables: tuple[str, ...] = TABLES, **options: Any
    ) -> LocalStore:
        while last:
            last.pop().close()
        chosen = {"expiring": {"inbox": HOUR_MS}, "trusted_for_ms": HOUR_MS, **options}
        last.append(LocalStore(tmp_path / name, tables, resources, **chosen))
        return last[-1]

    yield open_it
    while last:
        last.pop().close()


def age(store: LocalStore, by_ms: int) -> None:
    """Let the store look as if its last commit were so much longer ago."""
    store._families["_meta"].put(b"\xffat_ms", b"%d" % (now_ms() - by_ms))


def test_rows_and_positions_are_there_after_reopening(opened: Callable[..., LocalStore]) -> None:
    opened().apply({"payments": {b"a": b"1", b"b": b"2"}}, {"payments": 2})
    opened().apply({"payments": {b"a": None}}, {"payments": 3})
    store = opened()
    assert dict(store.scan("payments")) == {b"b": b"2"}
    assert store.get("payments", b"a") is None
    assert (store.position("payments"), store.position("inbox")) == (3, 0)


def test_a_scan_begins_where_it_is_told_and_ends_with_the_prefix(
    opened: Callable[..., LocalStore],
) -> None:
    store = opened()
    store.apply({"payments": dict.fromkeys((b"a1", b"a2", b"a3", b"b"), b"")}, {"payments": 4})
    assert [key for key, _ in store.scan("payments", b"a", b"a2")] == [b"a2", b"a3"]
    assert [key for key, _ in store.scan("payments", start=b"a3")] == [b"a3", b"b"]


def test_a_commit_behind_the_stored_position_is_refused(
    opened: Callable[..., LocalStore],
) -> None:
    store = opened()
    store.apply(ONE, {"payments": 7})
    with pytest.raises(StoreError, match="'payments' is at offset 1 and"):
        store.apply({"payments": {b"a": b"2"}}, {"payments": 1})
    assert store.get("payments", b"a") == b"1"


def test_the_same_changelogs_are_followed_without_a_word(
    opened: Callable[..., LocalStore], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        store = opened()
        store.follow({"payments": "id-1", "inbox": "id-2"})
        store.apply(ONE, {"payments": 7})
    assert opened().position("payments") == 7
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("name", "changelogs"),
    [
        ("partition-3", {"payments": "id-9", "inbox": "id-2"}),
        ("partition-5", {"payments": "id-1", "inbox": "id-2"}),
    ],
    ids=["made anew", "moved to another partition"],
)
def test_a_copy_of_other_changelogs_is_put_aside(
    opened: Callable[..., LocalStore],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    name: str,
    changelogs: dict[str, str],
) -> None:
    store = opened()
    store.follow({"payments": "id-1", "inbox": "id-2"})
    store.apply(ONE, {"payments": 7})
    store.close()
    (tmp_path / "partition-3").rename(tmp_path / name)
    store = opened(name)
    store.follow(changelogs)
    assert (store.get("payments", b"a"), store.position("payments")) == (None, 0)
    (aside,) = tmp_path.glob("*.replaced-*")
    assert str(aside) in caplog.messages[0]
    assert "rebuilt from the changelogs" in caplog.messages[0]
    assert opened(aside.name).get("payments", b"a") == b"1"
    caplog.clear()
    store = opened(name)
    store.follow(changelogs)
    assert caplog.messages == []


def test_rows_of_unknown_origin_are_not_believed(opened: Callable[..., LocalStore]) -> None:
    store = opened()
    store.apply(ONE, {"payments": 7})
    store.follow({"payments": "id-1"})
    assert store.get("payments", b"a") is None


def test_a_new_table_joins_the_others(
    opened: Callable[..., LocalStore], caplog: pytest.LogCaptureFixture
) -> None:
    opened().apply(ONE, {"payments": 7})
    store = opened(tables=(*TABLES, "orders"))
    assert (store.get("payments", b"a"), store.position("orders")) == (b"1", 0)
    store.apply({"orders": {b"o": b"1"}}, {"orders": 1})
    assert opened(tables=(*TABLES, "orders")).get("orders", b"o") == b"1"
    assert caplog.messages == []


def test_a_store_left_alone_for_too_long_is_rebuilt(
    opened: Callable[..., LocalStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = opened()
    store.apply(ONE, {"payments": 7})
    age(store, 2 * HOUR_MS)
    assert opened().get("payments", b"a") is None
    assert "BOOKSTORE_STORE_CHANGELOG_RETENTION_MS" in caplog.messages[0]


def test_a_store_of_the_future_is_rebuilt(opened: Callable[..., LocalStore]) -> None:
    store = opened()
    store.apply(ONE, {"payments": 7})
    age(store, -HOUR_MS)
    assert opened().get("payments", b"a") is None


def test_tables_of_different_commits_are_not_believed(
    opened: Callable[..., LocalStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = opened()
    store.apply(ONE, {"payments": 7})
    store._families["inbox"].put(b"\xff\xffstamp", b"12345")
    assert opened().get("payments", b"a") is None
    assert "different commits" in caplog.messages[0]


def test_an_inbox_that_lost_everything_is_not_believed(
    opened: Callable[..., LocalStore],
) -> None:
    store = opened()
    store.apply({"inbox": {b"c\0m": inbox_row(now_ms())}}, {"inbox": 1})
    store._families["inbox"].delete(b"c\0m")
    store._families["inbox"].delete(b"\xff\xffstamp")
    assert opened().position("inbox") == 0


@pytest.mark.parametrize("records", [10, 10**6], ids=["few", "many"])
def test_what_was_restored_is_there_after_reopening(
    opened: Callable[..., LocalStore], caplog: pytest.LogCaptureFixture, records: int
) -> None:
    store = opened()
    store.follow({"payments": "id-1", "inbox": "id-2"})
    store.begin_restore(records)
    for n in range(50):
        store.restore({"payments": {b"%d" % n: b"r"}, "inbox": {}}, {"payments": n + 1})
    store.end_restore()
    store.apply({"payments": {b"0": None, b"new": b"c"}}, {"payments": 60})
    shutil.copytree(store.path, store.path.with_name("killed"))
    for name in ("partition-3", "killed"):
        found = opened(name)
        assert found.position("payments") == 60
        assert len(list(found.scan("payments"))) == 50
        assert found.get("payments", b"new") == b"c"
    assert caplog.messages == []


def test_a_crash_while_many_rows_are_restored_leaves_nothing_to_believe(
    opened: Callable[..., LocalStore],
) -> None:
    """Positions are never ahead of rows: where a part of the tables was written, all is redone."""
    store = opened()
    store.begin_restore(10**6)
    seen = set()
    for n, table in enumerate(("payments", "inbox", "_meta", "payments", "_meta", "inbox")):
        rows: Writes = {"payments": {b"%d" % n: b"r"}, "inbox": {b"%d" % n: inbox_row(now_ms())}}
        store.restore(rows, {"payments": n + 1, "inbox": n + 1})
        store._families[table].flush()
        shutil.copytree(store.path, store.path.with_name(f"killed-{n}"))
    store.close()
    for n in range(6):
        found = opened(f"killed-{n}")
        position = found.position("payments")
        seen.add(position)
        assert found.position("inbox") == position
        assert len(list(found.scan("payments"))) == position
        assert len(list(found.scan("inbox"))) == position
    assert seen == {0}


def test_a_store_that_was_reset_knows_its_changelogs(
    opened: Callable[..., LocalStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = opened()
    store.follow({"payments": "id-1"})
    store.apply(ONE, {"payments": 7})
    store.reset("the changelog is shorter")
    store.apply(ONE, {"payments": 2})
    caplog.clear()
    store = opened()
    store.follow({"payments": "id-1"})
    assert (store.position("payments"), caplog.messages) == (2, [])


def test_expired_rows_go_from_disk_and_those_of_parked_messages_stay(
    opened: Callable[..., LocalStore],
) -> None:
    """Goal: what is older than its age is deleted beside commits, in steps that stay small."""
    store = opened()
    old, new = now_ms() - 2 * HOUR_MS, now_ms()
    rows: dict[bytes, bytes | None] = {b"old-%04d" % n: inbox_row(old) for n in range(1_000)}
    rows |= {b"new-%04d" % n: inbox_row(new) for n in range(1_000)}
    rows[b"parked"] = inbox_row(old, "parked")
    store.apply({"inbox": rows}, {"inbox": len(rows)})
    store = opened()
    left = [len(rows)]
    for commit in range(40):
        store.apply({"inbox": {b"z%d" % commit: inbox_row(new)}}, {"inbox": 3_000 + commit})
        left.append(sum(1 for _ in store.scan("inbox")))
    assert left[-1] == 1_041
    assert {key for key, _ in opened().scan("inbox")} >= {b"parked", b"new-0000", b"new-0999"}
    steps = [before - after for before, after in itertools.pairwise(left)]
    assert max(steps) <= 66


def test_expired_rows_that_a_changelog_still_had_go_as_well(
    opened: Callable[..., LocalStore],
) -> None:
    store = opened()
    store.apply({}, {})  # a pass over the empty table: it must not put off the next one
    store.begin_restore(100)
    rows: dict[bytes, bytes | None] = {
        b"%d" % n: inbox_row(now_ms() - 2 * HOUR_MS * (n % 2)) for n in range(100)
    }
    store.restore({"inbox": rows}, {"inbox": 100})
    assert len(list(store.scan("inbox"))) == 100
    store.end_restore()
    for _ in range(3):
        store.apply({}, {})
    assert {int(key) % 2 for key, _ in store.scan("inbox")} == {0}


def test_an_expired_row_that_is_written_again_stays(opened: Callable[..., LocalStore]) -> None:
    store = opened()
    store.apply({"inbox": {b"a": inbox_row(now_ms() - 2 * HOUR_MS)}}, {"inbox": 1})
    fresh = inbox_row(now_ms())
    store = opened()
    store.apply({"inbox": {b"a": fresh}}, {"inbox": 2})
    store.apply({}, {})
    assert store.get("inbox", b"a") == fresh


def test_nothing_is_read_while_no_row_can_have_expired(
    opened: Callable[..., LocalStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    store.apply({"inbox": {b"a": inbox_row(now_ms())}}, {"inbox": 1})
    store.apply({}, {})
    (expiry,) = store._expiries

    def read() -> None:
        raise AssertionError("the table was read")

    monkeypatch.setattr(expiry, "_iterate", read)
    for offset in range(2, 12):
        store.apply({"inbox": {b"%d" % offset: inbox_row(now_ms())}}, {"inbox": offset})
    assert store.position("inbox") == 11


def test_an_iterator_that_somebody_still_holds_does_not_keep_the_store_closed(
    opened: Callable[..., LocalStore],
) -> None:
    store = opened()
    store.apply({"payments": {b"a": b"1", b"b": b"2"}}, {"payments": 2})
    rows: list[Any] = [store.scan("payments")]
    rows.append(rows)  # a cycle: only the collector frees it
    next(rows[0])
    del rows
    assert opened().get("payments", b"b") == b"2"


def test_a_store_that_another_process_has_open_is_left_alone(
    opened: Callable[..., LocalStore], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    store = opened()
    store.apply(ONE, {"payments": 7})
    other = pytest.raises(StoreError, match="another process has it open")
    with other, caplog.at_level(logging.WARNING):
        LocalStore(store.path, TABLES, store._resources, expiring={}, trusted_for_ms=HOUR_MS)
    assert store.get("payments", b"a") == b"1"
    assert caplog.messages == []
