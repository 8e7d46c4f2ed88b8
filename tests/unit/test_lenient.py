"""Header names that are no UTF-8: read with the odd bytes escaped; nothing else is let pass."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException, NotLeaderForPartitionError
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchBuilderPy
from aiokafka.structs import TopicPartition

from bookstore_streams.kafka import lenient

HERE = TopicPartition("orders", 3)


class NotText(str):
    """A header name that goes onto the wire as bytes which are no UTF-8."""

    __slots__ = ()

    def encode(self, *args: object, **kwargs: object) -> bytes:
        return b"a\xff\xfe"


def batch(base: int, *names: str, codec: int = 0, producer: int = -1) -> bytes:
    """A batch as on the wire: one record per header name, from offset `base` on."""
    builder = _DefaultRecordBatchBuilderPy(2, codec, int(producer >= 0), producer, 0, 0, 1 << 20)
    for n, name in enumerate(names):
        builder.append(n, 1_000 + n, b"key-%d" % (base + n), b"{}", [(name, b"v"), ("ok", None)])
    raw = bytearray(builder.build())
    raw[0:8] = base.to_bytes(8, "big")
    return bytes(raw)


class Client:
    """Answers one fetch with raw batches.

    Attributes:
        asked: (topic, partition, offset) of each fetch.
    """

    def __init__(self, *raw: bytes, code: int = 0, aborted: Any = ()) -> None:
        self.cluster = SimpleNamespace(leader_for_partition=lambda tp: 1)
        self.asked: list[tuple[str, int, int]] = []
        self._part = (HERE.partition, code, 99, 99, 0, list(aborted), -1, b"".join(raw))

    async def send(self, node: int, request: Any) -> Any:
        """Answer with version 11 of Fetch."""
        ((topic, ((partition, offset, _),)),) = request.topics
        self.asked.append((topic, partition, offset))
        return SimpleNamespace(API_VERSION=11, topics=[(HERE.topic, [self._part])])


def read(client: Any, position: int, records_max: int = 100) -> tuple[list[Any], int]:
    return asyncio.run(
        lenient.read(client, HERE, position, bytes_max=1 << 20, records_max=records_max)
    )


def test_aiokafka_itself_raises_at_such_a_name() -> None:
    """The control: without it all of this would be for nothing."""
    with pytest.raises((UnicodeDecodeError, CorruptRecordException)):
        list(DefaultRecordBatch(batch(0, NotText("x"))))


@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "gzip"])
def test_every_record_of_the_answer_is_read_and_odd_names_are_escaped(codec: int) -> None:
    client = Client(batch(5, "good", NotText("x"), "again", codec=codec), batch(8, "more"))
    records, position = read(client, 5)
    assert client.asked == [("orders", 3, 5)]
    assert [(r.topic, r.partition, r.offset, r.key) for r in records] == [
        ("orders", 3, n, b"key-%d" % n) for n in (5, 6, 7, 8)
    ]
    assert [r.headers for r in records] == [
        (("good", b"v"), ("ok", None)),
        (("a\\xff\\xfe", b"v"), ("ok", None)),
        (("again", b"v"), ("ok", None)),
        (("more", b"v"), ("ok", None)),
    ]
    assert position == 9


def test_names_that_are_text_are_left_as_they_are() -> None:
    records, _ = read(Client(batch(0, "schlüssel", "キー")), 0)
    assert [r.headers[0][0] for r in records] == ["schlüssel", "キー"]


def test_records_before_the_position_are_left_out() -> None:
    records, position = read(Client(batch(5, "a", NotText("x"), "b")), 6)
    assert [r.offset for r in records] == [6, 7]
    assert position == 8


def test_no_more_than_asked_for_are_taken_and_the_position_says_where_to_go_on() -> None:
    records, position = read(Client(batch(5, "a", NotText("x"), "b")), 5, records_max=2)
    assert [r.offset for r in records] == [5, 6]
    assert position == 7


def test_records_of_aborted_transactions_are_passed_over() -> None:
    raw = (batch(5, NotText("x"), producer=7), batch(6, "kept", producer=8))
    records, position = read(Client(*raw, aborted=[(7, 5)]), 5)
    assert [r.offset for r in records] == [6]
    assert position == 7


def test_a_batch_that_the_answer_cuts_off_is_left_for_the_next_one() -> None:
    records, position = read(Client(batch(5, "a"), batch(6, "b")[:-3]), 5)
    assert [r.offset for r in records] == [5]
    assert position == 6
    assert read(Client(b"\0" * 5), 5) == ([], 5)


def test_a_batch_that_is_damaged_is_an_error() -> None:
    raw = bytearray(batch(5, NotText("x")))
    raw[-1] ^= 1
    with pytest.raises(CorruptRecordException):
        read(Client(bytes(raw)), 5)


def test_a_batch_of_an_older_format_is_an_error() -> None:
    raw = bytearray(batch(5, "a"))
    raw[16] = 1
    with pytest.raises(CorruptRecordException):
        read(Client(bytes(raw)), 5)


def test_a_broker_that_refuses_is_an_error() -> None:
    with pytest.raises(NotLeaderForPartitionError):
        read(Client(code=6), 5)


def test_what_is_left_of_an_answer_that_could_not_be_read_moves_no_position() -> None:
    """Else records before an unreadable one, in the same answer, would be passed over."""
    state = SimpleNamespace(position=5, paused=False, has_valid_position=True, passed=[])
    state.consumed_to = state.passed.append
    given = SimpleNamespace(active=True, tps={HERE}, state_value=lambda tp: state)
    records = PartitionRecords(HERE, Damaged(), [], 5, None, None, False, 0)
    answer = FetchResult(HERE, assignment=given, partition_records=records, backoff=0)

    with pytest.raises(UnicodeDecodeError):
        answer.getall(10)
    assert records.next_fetch_offset == 6
    assert answer.getall(10) == []
    assert state.passed == []
    assert not answer.has_more()


class Damaged:
    """One batch whose second record cannot be read."""

    is_control_batch = False

    def has_next(self) -> bool:
        return True

    def next_batch(self) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        record = SimpleNamespace(offset=5, key=b"", value=b"", headers=())
        yield SimpleNamespace(**vars(record), timestamp=0, timestamp_type=0, checksum=None)
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")
