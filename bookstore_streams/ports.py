"""What the engine needs of the world: small protocols, and the values that cross them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Headers = Sequence[tuple[str, bytes | None]]

#: Rows of one commit: table -> row key -> row bytes, None deletes.
Writes = dict[str, dict[bytes, bytes | None]]

#: Names a step of a commit as it is taken; a test kills the process there.
Probe = Callable[[str], None]


class Record(Protocol):
    """A record as it came from the broker; aiokafka's own records fit."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        ...

    @property
    def partition(self) -> int:
        """Number of the partition."""
        ...

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...

    @property
    def timestamp(self) -> int:
        """Epoch ms its producer or broker gave it."""
        ...

    @property
    def key(self) -> bytes | None:
        """What it belongs to; None for nothing."""
        ...

    @property
    def value(self) -> bytes | None:
        """What it carries; None for a tombstone."""
        ...

    @property
    def headers(self) -> Headers:
        """Pairs in the order of the wire; a name can come twice."""
        ...


class Emission(NamedTuple):
    """An event or dead letter to publish in the commit of the message that caused it."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(slots=True)
class Batch:
    """What one commit holds.

    Attributes:
        writes: rows of all tables.
        emissions: in the order in which their messages finished.
        marks: topic -> offset to commit for the partition's number; topics that moved only.
    """

    writes: Writes
    emissions: list[Emission]
    marks: dict[str, int]

    def is_empty(self) -> bool:
        """Whether committing it would change nothing."""
        return not (self.emissions or self.marks or any(self.writes.values()))


class StateStore(Protocol):
    """Rows of all tables of one partition: always a committed prefix of their changelogs."""

    @property
    def tables(self) -> Collection[str]:
        """Names of all tables."""
        ...

    def get(self, table: str, key: bytes) -> bytes | None:
        """One row, None when there is none."""
        ...

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows in key order whose key begins with `prefix`, from `start` on where given."""
        ...

    def apply(self, writes: Writes, positions: Mapping[str, int]) -> None:
        """Write rows and changelog positions (table -> next offset) all or nothing.

        Raises:
            StoreError: nothing of it was written.
        """
        ...

    def close(self) -> None:
        """Give the directory back."""
        ...


class Journal(Protocol):
    """The broker's side of one partition: what is committed here, no other worker can undo."""

    @property
    def store(self) -> StateStore:
        """The local copy, recovered to the end of the changelogs."""
        ...

    async def commit(self, batch: Batch, probe: Probe) -> dict[str, int]:
        """Publish everything in `batch` in one transaction.

        Returns:
            Position of each changelog written to: table -> offset after the last record.

        Raises:
            LeaseLostError: another worker owns the partition; nothing was committed.
            TransportError: the transaction may or may not have been committed.
        """
        ...

    async def close(self) -> None:
        """Give the broker's resources and the store back."""
        ...


class Backend(Protocol):
    """Opens partitions for the engine, and says whether this worker may act on them."""

    async def open(
        self, number: int, topics: Iterable[str], on_progress: Callable[[int, int], None]
    ) -> tuple[Journal, dict[str, int]]:
        """Fence the former owner, recover, and say where each topic goes on.

        Args:
            number: of the partition.
            topics: source topics whose partition of that number this worker owns.
            on_progress: told (records restored, records to restore) while it recovers.

        Returns:
            The journal, and topic -> offset of the first record to handle.
        """
        ...

    def has_lease(self) -> bool:
        """Whether the group still counts this worker as alive."""
        ...


class Clock(Protocol):
    """Where time comes from."""

    def now_ms(self) -> int:
        """Epoch ms."""
        ...
