"""An imaginary cluster: topics with partitions, transactions with fencing, committed offsets.

As on Kafka, the end of a transaction takes an offset of its own in each partition that it
wrote to, and readers stop at the first record whose transaction is open. Refuses what the
engine does not need: group membership (a test says who owns which partition), retention and
compaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bookstore_streams.errors import InvariantError, LeaseLostError, TransportError
from bookstore_streams.ports import Headers

#: What Kafka takes where a topic does not say otherwise, in bytes.
RECORD_BYTES_MAX = 1_048_588


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """A record of the memory broker; see `ports.Record`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()

    def header(self, name: str) -> str | None:
        """The last header of that name as text; None when there is none."""
        found = [value for each, value in self.headers if each == name]
        return found[-1].decode() if found and found[-1] is not None else None


@dataclass(slots=True)
class _Transaction:
    state: Literal["open", "committed", "aborted"] = "open"
    # (topic, partition) -> offset of its first record there
    firsts: dict[tuple[str, int], int] = field(default_factory=dict)
    # (group, topic, partition) -> offset to commit with it
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)


@dataclass(slots=True)
class _Entry:
    """One offset of a partition: a record, or the end of a transaction."""

    record: MemoryRecord | None
    transaction: _Transaction | None = None


class MemoryBroker:
    """Topics, transactions and committed offsets of an imaginary cluster."""

    def __init__(self, *, partitions: int = 1, now_ms: Callable[[], int] = lambda: 0) -> None:
        """Make an empty cluster.

        Args:
            partitions: of every topic.
            now_ms: epoch ms that records are stamped with.
        """
        self.partitions = partitions
        self._now_ms = now_ms
        self._logs: dict[tuple[str, int], list[_Entry]] = defaultdict(list)
        self._committed: dict[tuple[str, str, int], int] = {}
        self._bytes_max: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._open: dict[str, _Transaction] = {}

    def limit(self, topic: str, record_bytes_max: int) -> None:
        """Set what a topic takes; `RECORD_BYTES_MAX` unless set."""
        self._bytes_max[topic] = record_bytes_max

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> MemoryRecord:
        """Append one record outside any transaction, by its key where no partition is given.

        Raises:
            TransportError: it is larger than the topic takes.
        """
        number = partition_of(key, self.partitions) if partition is None else partition
        return self._append(topic, number, key, value, headers, None)

    def read(
        self, topic: str, partition: int, offset: int, records_max: int | None = None
    ) -> list[MemoryRecord]:
        """Committed records from `offset` on, as far as every earlier transaction has ended."""
        found: list[MemoryRecord] = []
        for entry in self._logs[topic, partition][offset : self.end(topic, partition)]:
            if entry.record is None or (
                entry.transaction is not None and entry.transaction.state != "committed"
            ):
                continue
            found.append(entry.record)
            if len(found) == records_max:
                break
        return found

    def end(self, topic: str, partition: int) -> int:
        """The last stable offset: of the first record whose transaction is open, else the end."""
        end = len(self._logs[topic, partition])
        return min(
            (t.firsts.get((topic, partition), end) for t in self._open.values()), default=end
        )

    def records(self, topic: str) -> list[MemoryRecord]:
        """Every committed record of a topic, partition by partition."""
        return [
            record
            for partition in range(self.partitions)
            for record in self.read(topic, partition, 0)
        ]

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The offset a group committed; None when it never did."""
        return self._committed.get((group, topic, partition))

    # -- what a transactional producer asks ---------------------------------------------------

    def fence(self, transactional_id: str) -> int:
        """Give the id to a new producer: abort what an older one has open, refuse it from now on.

        Returns:
            The epoch that the new producer proves itself with.
        """
        self._end(transactional_id, "aborted")
        epoch = self._epochs[transactional_id] = self._epochs.get(transactional_id, 0) + 1
        return epoch

    def begin(self, transactional_id: str, epoch: int) -> None:
        """Begin a transaction.

        Raises:
            LeaseLostError: another producer has the id now. So do the other calls below.
            InvariantError: one is open already.
        """
        self._check(transactional_id, epoch)
        if transactional_id in self._open:
            raise InvariantError(f"{transactional_id} has a transaction open already.")
        self._open[transactional_id] = _Transaction()

    def send(
        self,
        transactional_id: str,
        epoch: int,
        topic: str,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> MemoryRecord:
        """Append one record to the open transaction.

        Raises:
            TransportError: it is larger than the topic takes.
        """
        self._check(transactional_id, epoch)
        number = partition_of(key, self.partitions) if partition is None else partition
        return self._append(topic, number, key, value, headers, self._open[transactional_id])

    def send_offset(
        self, transactional_id: str, epoch: int, group: str, topic: str, partition: int, offset: int
    ) -> None:
        """Let a group's offset become `offset` when the transaction is committed."""
        self._check(transactional_id, epoch)
        self._open[transactional_id].offsets[group, topic, partition] = offset

    def commit(self, transactional_id: str, epoch: int) -> None:
        """Make everything of the open transaction visible at once."""
        self._check(transactional_id, epoch)
        self._end(transactional_id, "committed")

    def _check(self, transactional_id: str, epoch: int) -> None:
        if self._epochs[transactional_id] != epoch:
            raise LeaseLostError(f"{transactional_id} was fenced: another worker has it.", "memory")

    def _end(self, transactional_id: str, state: Literal["committed", "aborted"]) -> None:
        transaction = self._open.pop(transactional_id, None)
        if transaction is None:
            return
        transaction.state = state
        for where in transaction.firsts:
            self._logs[where].append(_Entry(None))
        if state == "committed":
            self._committed.update(transaction.offsets)

    def _append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        transaction: _Transaction | None,
    ) -> MemoryRecord:
        size, bytes_max = _batch_bytes(key, value, headers), self._bytes_max.get(topic)
        if size > (RECORD_BYTES_MAX if bytes_max is None else bytes_max):
            raise TransportError(f"A record of {size} bytes is too large for {topic}.", "memory")
        log = self._logs[topic, partition]
        record = MemoryRecord(
            topic, partition, len(log), self._now_ms(), key, value, tuple(headers)
        )
        log.append(_Entry(record, transaction))
        if transaction is not None:
            transaction.firsts.setdefault((topic, partition), record.offset)
        return record


def partition_of(key: bytes | None, count: int) -> int:
    """The partition that Kafka's default partitioner gives a key; 0 for none.

    Source: murmur2 as in org.apache.kafka.common.utils.Utils; compared with aiokafka 0.14.
    """
    if key is None or count == 1:
        return 0
    return (_murmur2(key) & 0x7FFFFFFF) % count


def _murmur2(data: bytes) -> int:
    word, mask = 0x5BD1E995, 0xFFFFFFFF
    value = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * word & mask
        part = (part ^ (part >> 24)) * word & mask
        value = (value * word & mask) ^ part
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * word & mask
    value = (value ^ (value >> 13)) * word & mask
    return value ^ (value >> 15)


def _batch_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """What a record takes in a batch of its own, time and offset deltas 0.

    Source: Kafka record format v2: 61 bytes for the batch, zigzag varints before each field.
    """
    size = 3 + _sized(key) + _sized(value) + _varint_bytes(len(headers))
    for name, content in headers:
        size += _sized(name.encode()) + _sized(content)
    return 61 + _varint_bytes(size) + size


def _sized(content: bytes | None) -> int:
    return 1 if content is None else _varint_bytes(len(content)) + len(content)


def _varint_bytes(number: int) -> int:
    return max(1, -(-(2 * number).bit_length() // 7))
