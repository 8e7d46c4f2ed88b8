"""The dead letter of a record, and how it is made to fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from bookstore_streams.core.effects import DeadLetter
from bookstore_streams.engine.dead_letters import (
    DLT_KEY_BYTES,
    DLT_VALUE_BYTES,
    dead_letter,
    record_bytes,
)
from bookstore_streams.ports import Headers
from bookstore_streams.testing.memory import MemoryRecord

LETTER = DeadLetter("permanent", "ValueError", "odd", attempts=3)
HEADERS: list[tuple[str, bytes | None]] = [("message-id", b"m1"), ("other", None)]
OURS = {
    "retry-attempt": b"3",
    "original-topic-partition-offset": b"orders [[2]] @41",
    "dlt-exception-type": b"ValueError",
    "dlt-exception-message": b"odd",
    "dlt-reason": b"permanent",
}


def record(
    value: bytes | None = b"{}",
    headers: Headers = HEADERS,
    key: bytes | None = b"A",
) -> MemoryRecord:
    return MemoryRecord("orders", 2, 41, 0, key, value, list(headers))


@pytest.mark.parametrize("key", [None, b"", b"A"])
@pytest.mark.parametrize("value", [None, b"", b"{}"])
def test_it_is_the_record_as_it_was_with_our_headers(
    key: bytes | None, value: bytes | None
) -> None:
    letter = dead_letter("dlt", record(value, key=key), LETTER, 10_000)
    assert (letter.topic, letter.key, letter.value) == ("dlt", key, value)
    assert letter.headers == [*HEADERS, *OURS.items()]


def test_headers_do_not_grow_over_any_number_of_replays() -> None:
    source = record(headers=[*HEADERS, ("retry-not-before", b"5"), (DLT_VALUE_BYTES, b"9")])
    once = dead_letter("dlt", source, LETTER, 10_000)
    assert once.headers == [*HEADERS, *OURS.items()]
    again = dead_letter("dlt", record(headers=once.headers), LETTER, 10_000)
    assert again.headers == once.headers


def test_its_message_is_cut() -> None:
    letter = dead_letter("dlt", record(), DeadLetter("permanent", "E", "x" * 5_000, 1), 10_000)
    assert dict(letter.headers)["dlt-exception-message"] == b"x" * 1_000


def test_a_record_that_fits_exactly_is_whole_and_one_byte_more_is_cut() -> None:
    source = record(b"x" * 5_000)
    whole = dead_letter("dlt", source, LETTER, 10_000)
    size = record_bytes(whole.key, whole.value, whole.headers)
    assert dead_letter("dlt", source, LETTER, size).value == source.value
    cut = dead_letter("dlt", source, LETTER, size - 1)
    assert cut.value == (source.value or b"")[: len(cut.value or b"")]
    assert dict(cut.headers)[DLT_VALUE_BYTES] == b"5000"
    assert len(cut.value or b"") > 4_900


def test_headers_that_leave_no_room_are_left_out_and_ours_are_kept() -> None:
    headers = [("message-id", b"m1"), ("huge", bytes(9_000)), ("other", b"x")]
    letter = dead_letter("dlt", record(headers=headers), LETTER, 2_048)
    assert dict(letter.headers) == {"message-id": b"m1", **OURS, DLT_VALUE_BYTES: b"2"}
    assert letter.value == b"{}"


def test_a_key_that_fills_the_record_is_cut() -> None:
    letter = dead_letter("dlt", record(key=b"k" * 9_000), LETTER, 8_000)
    assert letter.key == b"k" * 2_000
    assert dict(letter.headers)[DLT_KEY_BYTES] == b"9000"
    assert letter.value == b"{}"


def test_a_record_without_a_value_loses_its_headers_only() -> None:
    letter = dead_letter("dlt", record(None, headers=[("huge", bytes(9_000))]), LETTER, 2_000)
    assert letter.value is None
    assert record_bytes(letter.key, letter.value, letter.headers) <= 2_000


SIZES = st.sampled_from([0, 1, 60, 64, 127, 128, 300, 8_000, 17_000])
SHORT = st.none() | st.binary(max_size=20) | SIZES.map(bytes)
TEXTS = st.sampled_from(["", "odd", "x" * 1_000, "\U0001f4d5" * 1_000])
PAIRS = st.lists(st.tuples(st.text(max_size=8), SHORT), max_size=6)


@given(
    key=SHORT,
    value=SHORT,
    headers=PAIRS,
    ids=SIZES,
    text=TEXTS,
    bytes_max=st.integers(2_048, 20_000),
)
def test_it_always_fits_and_tells_why_and_where_from(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    ids: int,
    text: str,
    bytes_max: int,
) -> None:
    source = record(value, [("message-id", b"m" * ids), *headers], key)
    letter = dead_letter("dlt", source, replace(LETTER, error_message=text), bytes_max)
    assert record_bytes(letter.key, letter.value, letter.headers) <= bytes_max
    assert (key or b"").startswith(letter.key or b"")
    assert (value or b"").startswith(letter.value or b"")
    for name in ("retry-attempt", "original-topic-partition-offset", "dlt-reason"):
        assert letter.headers.count((name, OURS[name])) == 1


@given(key=SHORT, value=SHORT, headers=PAIRS)
def test_the_size_is_never_below_what_the_client_sends(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1,
    )
    builder.append(0, 1_767_225_600_000, key, value, headers)
    sent = len(builder.build())
    assert sent <= record_bytes(key, value, headers) <= sent + 64 + 12 * len(headers)
