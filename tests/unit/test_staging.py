"""Rows of finished messages over the committed ones."""

from __future__ import annotations

from bookstore_streams.engine.staging import Staging
from bookstore_streams.ports import Emission
from bookstore_streams.testing.memory import Faults, MemoryDisk, MemoryStore


def staging_over(rows: dict[bytes, bytes | None]) -> tuple[Staging, MemoryStore]:
    store = MemoryStore(MemoryDisk().files(0), ["t", "u"], Faults())
    store.apply({"t": rows}, {})
    return Staging(store), store


def test_a_read_sees_what_is_staged_then_what_is_being_committed_then_the_store() -> None:
    staging, store = staging_over({b"a": b"1", b"b": b"1", b"c": b"1"})
    staging.put("t", b"a", b"2")
    staging.put("t", b"b", b"2")
    batch = staging.take({})
    staging.put("t", b"a", b"3")
    assert [staging.get("t", key) for key in (b"a", b"b", b"c", b"d")] == [b"3", b"2", b"1", None]
    store.apply(batch.writes, {})
    staging.landed()
    assert [staging.get("t", key) for key in (b"a", b"b", b"c")] == [b"3", b"2", b"1"]


def test_a_deleted_row_is_absent_on_every_layer() -> None:
    staging, _ = staging_over({b"a": b"1"})
    staging.put("t", b"a", None)
    assert staging.get("t", b"a") is None
    staging.take({})
    assert staging.get("t", b"a") is None
    staging.put("t", b"a", b"2")
    assert staging.get("t", b"a") == b"2"


def test_a_read_changes_nothing_in_the_commit_under_way() -> None:
    staging, _ = staging_over({b"a": b"1"})
    staging.put("t", b"a", b"2")
    batch = staging.take({})
    assert staging.get("u", b"a") is None
    assert dict(batch.writes) == {"t": {b"a": b"2"}}


def test_a_commit_takes_everything_once() -> None:
    staging, _ = staging_over({})
    event = Emission("events", b"k", b"v", [])
    staging.merge({("t", b"a"): b"1", ("u", b"a"): None}, [event])
    batch = staging.take({"orders": 5})
    assert dict(batch.writes) == {"t": {b"a": b"1"}, "u": {b"a": None}}
    assert batch.emissions == [event]
    assert batch.marks == {"orders": 5}
    assert staging.take({}).is_empty()


def test_reading_stages_nothing() -> None:
    staging, _ = staging_over({})
    staging.get("t", b"a")
    assert staging.take({}).is_empty()


def test_a_batch_is_empty_only_without_rows_events_and_offsets() -> None:
    staging, _ = staging_over({})
    assert not staging.take({"orders": 1}).is_empty()
    staging.emissions.append(Emission("events", None, None, []))
    assert not staging.take({}).is_empty()
    staging.put("t", b"a", None)
    assert not staging.take({}).is_empty()
