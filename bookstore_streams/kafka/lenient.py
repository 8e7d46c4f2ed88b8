r"""Reads what the client library refuses: records with header names that are no UTF-8.

Kafka's protocol demands UTF-8 there, brokers do not check it, and aiokafka raises for the whole
fetch. A name that is no text is of no use to anybody here, so it is read with its odd bytes
escaped (the byte 255 becomes the four characters `\xff`) and the record is one like any other.

Source: record batches as aiokafka 0.14 reads them in Python, `_DefaultRecordBatchPy`.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.errors import CorruptRecordException, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.structs import TopicPartition

# Of one answer: enough for the largest record, and for a few thousand others.
FETCH_WAIT_MS = 100
# Base offset and length, before every batch.
_HEAD = struct.Struct(">qi")
_MAGIC_AT = 16
_MAGIC = 2


class _Names(bytearray):
    """Bytes whose slices become text whatever is in them."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return _Names(found) if isinstance(index, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Text, with the bytes escaped that are none."""
        return super().decode(encoding, "backslashreplace")


class _Batch(_DefaultRecordBatchPy):  # type: ignore[misc]
    """A batch that reads any header name."""

    _buffer: bytearray

    def __init__(self, buffer: bytes) -> None:
        super().__init__(buffer)
        self._buffer = _Names(self._buffer)

    def _maybe_uncompress(self) -> None:
        super()._maybe_uncompress()
        self._buffer = _Names(self._buffer)


class Batches:
    """The whole batches of an answer, as `PartitionRecords` asks for them."""

    def __init__(self, raw: bytes) -> None:
        """Make them; the last one is left out where the answer cuts it.

        Args:
            raw: batches one after another.
        """
        self._raw = raw
        self._at = 0

    def has_next(self) -> bool:
        """Whether there is another whole one."""
        return self._end() is not None

    def next_batch(self) -> _Batch:
        """The next one."""
        begin, end = self._at, self._end()
        assert end is not None
        self._at = end
        if self._raw[begin + _MAGIC_AT] != _MAGIC:
            raise CorruptRecordException("a batch of an older format")
        return _Batch(self._raw[begin:end])

    def _end(self) -> int | None:
        if len(self._raw) < self._at + _HEAD.size:
            return None
        _, length = _HEAD.unpack_from(self._raw, self._at)
        end = self._at + _HEAD.size + int(length)
        return end if end <= len(self._raw) else None


async def read(
    client: AIOKafkaClient,
    partition: TopicPartition,
    position: int,
    *,
    bytes_max: int,
    records_max: int,
) -> tuple[list[Any], int]:
    """Committed records from a position on, whatever their headers are called.

    Args:
        client: of the consumer.
        partition: to read.
        position: offset of the first one.
        bytes_max: of the answer.
        records_max: how many at most.

    Returns:
        The records, and the offset to go on at.

    Raises:
        KafkaError: the broker refuses, or the records are damaged.
    """
    leader = client.cluster.leader_for_partition(partition)
    where = [(partition.topic, [(partition.partition, position, bytes_max)])]
    answer: Any = await client.send(
        leader, FetchRequest(FETCH_WAIT_MS, 1, bytes_max, READ_COMMITTED, where)
    )
    ((_, ((_, code, _, *rest),)),) = answer.topics
    if code:
        raise for_code(code)(f"reading {partition}")
    aborted = rest[2] if answer.API_VERSION >= 11 else rest[-2]
    records = PartitionRecords(
        partition, Batches(rest[-1]), aborted, position, None, None, True, READ_COMMITTED
    )
    found = list(islice(records, records_max))
    return found, records.next_fetch_offset
