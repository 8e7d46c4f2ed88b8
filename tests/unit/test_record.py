"""A source record as bytes, and back."""

from __future__ import annotations

import struct

import pytest

from bookstore_streams.core.record import StoredRecord, pack, shown, unpack

RECORD = StoredRecord(
    topic="orders",
    partition=3,
    offset=2**40,
    timestamp=1_767_225_600_000,
    key=b"A",
    value=b'{"n": 1}',
    headers=[("message-id", b"m1"), ("trace", None), ("message-id", b"m2"), ("", b"")],
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


@pytest.mark.parametrize("key", [None, b"", b"A", b"\xff\x00"])
@pytest.mark.parametrize("value", [None, b"", b"{}", bytes(range(256))])
def test_a_record_comes_back_as_it_was(key: bytes | None, value: bytes | None) -> None:
    record = StoredRecord("orders", 0, 0, -1, key, value, [])
    assert unpack(packed(record)) == record


def test_headers_keep_their_order_their_doubles_and_their_nulls() -> None:
    assert unpack(packed(RECORD)) == RECORD


def test_a_packed_record_is_hardly_longer_than_its_value() -> None:
    large = StoredRecord("orders", 0, 0, 0, b"A", bytes(1_000_000), [])
    assert len(packed(large)) < 1_000_100


def test_the_format_is_pinned() -> None:
    """Rows outlive the worker that wrote them."""
    raw = pack("t", 1, 2, 3, b"k", None, [("h", b"v")])
    assert raw.hex() == (
        "01" "00000001" "0000000000000002" "0000000000000003" "00000001"
        "00000001" "74" "00000001" "6b" "00000001" "68" "00000001" "76" "ffffffff"
    )  # fmt: skip


def test_another_format_and_cut_bytes_are_refused() -> None:
    raw = packed(RECORD)
    with pytest.raises(ValueError, match="format 2"):
        unpack(b"\x02" + raw[1:])
    for length in range(len(raw)):
        with pytest.raises(ValueError, match="cut"):
            unpack(raw[:length])


def test_a_length_that_cannot_be_is_refused() -> None:
    raw = bytearray(pack("topic", 0, 0, 0, b"key", b"value", []))
    raw[25:29] = struct.pack(">i", -20)  # of the topic
    with pytest.raises(ValueError, match="cut"):
        unpack(bytes(raw))


def test_a_view_shows_text_where_there_is_text() -> None:
    record = StoredRecord("orders", 0, 1, 2, None, b"\xff{}", [("h", b"v"), ("n", None)])
    assert shown(record) == {
        "topic": "orders",
        "partition": 0,
        "offset": 1,
        "timestamp": 2,
        "key": None,
        "value": "\\xff{}",
        "headers": [["h", "v"], ["n", None]],
    }
