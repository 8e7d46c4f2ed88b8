"""What is written is read back the same, and keys keep apart and in order."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from bookstore_streams.core.classify import CAUSE_CHARACTERS_MAX, classify, printable
from bookstore_streams.core.inbox import inbox_key, split_inbox_key
from bookstore_streams.core.parking import (
    Attempted,
    Doom,
    KeyState,
    ParkedKey,
    message_key,
    message_prefix,
    parked_key,
    split_message_key,
    split_parked_key,
)
from bookstore_streams.core.record import StoredRecord, pack, shown, unpack
from bookstore_streams.testing.memory import partition_of

MS = st.integers(0, 2**41)
COUNTS = st.integers(0, 2**31)
TEXT = st.text(max_size=8)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1, max_size=6)
KEYS = st.text(min_size=1, max_size=8)
SEQUENCES = st.integers(0, 2**64 - 1)
BYTES = st.none() | st.binary(max_size=30)

RECORDS = st.builds(
    StoredRecord,
    topic=TEXT,
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    timestamp=st.integers(-1, 2**63 - 1),
    key=BYTES,
    value=BYTES,
    headers=st.lists(st.tuples(TEXT, BYTES), max_size=5),
)
PARKED = st.builds(
    lambda count, **given: ParkedKey(tail=given["head"] + count, **given),
    count=st.integers(1, 2**20),
    head=st.integers(0, 2**50),
    attempts=COUNTS,
    rounds=COUNTS,
    due_ms=MS,
    cause=TEXT,
    oldest_ms=MS,
    state=st.sampled_from(KeyState),
    doom=st.none() | st.builds(Doom, TEXT, TEXT, TEXT),
    history=st.lists(st.builds(Attempted, MS, COUNTS, TEXT, TEXT), max_size=5).map(tuple),
)


def packed(record: StoredRecord) -> bytes:
    return pack(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
    )


@given(RECORDS)
def test_a_packed_record_comes_back_the_same(record: StoredRecord) -> None:
    assert unpack(packed(record)) == record


@given(RECORDS, RECORDS)
def test_two_records_have_the_same_bytes_only_if_they_are_the_same(
    one: StoredRecord, other: StoredRecord
) -> None:
    assert (packed(one) == packed(other)) == (one == other)


@given(RECORDS, st.data())
def test_a_cut_record_is_never_taken_for_a_whole_one(
    record: StoredRecord, data: st.DataObject
) -> None:
    raw = packed(record)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    try:
        unpack(cut)
    except ValueError:
        return
    raise AssertionError("a cut record was read")


@given(RECORDS)
def test_every_record_can_be_shown_as_json(record: StoredRecord) -> None:
    assert orjson.loads(orjson.dumps(shown(record)))["offset"] == record.offset


@given(PARKED)
def test_the_row_of_a_parked_key_comes_back_the_same(parked: ParkedKey) -> None:
    assert ParkedKey.from_row(orjson.loads(orjson.dumps(parked.to_row()))) == parked


@given(NAMES, KEYS, SEQUENCES)
def test_row_keys_come_back_the_same(name: str, key: str, sequence: int) -> None:
    assert split_inbox_key(inbox_key(name, key)) == (name, key)
    assert split_parked_key(parked_key(name, key)) == (name, key)
    assert split_message_key(message_key(name, key, sequence)) == (name, key, sequence)


@given(NAMES, KEYS, st.lists(SEQUENCES, min_size=2, unique=True))
def test_the_store_keeps_the_messages_of_a_key_in_queue_order(
    name: str, key: str, sequences: list[int]
) -> None:
    rows = sorted(message_key(name, key, sequence) for sequence in sequences)
    assert [split_message_key(row)[2] for row in rows] == sorted(sequences)


@given(st.tuples(NAMES, KEYS, SEQUENCES), st.tuples(NAMES, KEYS))
def test_a_scan_of_one_key_finds_no_message_of_another(
    message: tuple[str, str, int], other: tuple[str, str]
) -> None:
    found = message_key(*message).startswith(message_prefix(*other))
    assert found == (message[:2] == other)


@given(st.tuples(NAMES, KEYS), st.tuples(NAMES, KEYS))
def test_no_two_keys_share_a_row(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (parked_key(*one) == parked_key(*other)) == (one == other)
    assert (inbox_key(*one) == inbox_key(*other)) == (one == other)


@given(st.text(st.characters(), max_size=2_000))
def test_the_text_of_any_exception_can_be_written_everywhere(text: str) -> None:
    shown_text = printable(ValueError(text))
    assert len(shown_text) <= CAUSE_CHARACTERS_MAX
    assert orjson.loads(orjson.dumps(classify(ValueError(text)).cause)) is not None
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert shown_text == text[:CAUSE_CHARACTERS_MAX]


@given(st.binary(max_size=40), st.integers(1, 64))
def test_the_memory_broker_partitions_as_the_client_does(key: bytes, count: int) -> None:
    from aiokafka.partitioner import murmur2

    assert partition_of(key, count) == (murmur2(key) & 0x7FFFFFFF) % count
