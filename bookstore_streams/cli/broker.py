"""What the commands need of Kafka; the composition root gives it to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

#: Table -> (partition, row key) -> row.
TableRows = Mapping[str, Mapping[tuple[int, bytes], bytes]]


class Broker(Protocol):
    """Reads and writes without a worker. Every method raises a TransportError that says why."""

    async def read_tables(
        self,
        tables: Iterable[str],
        is_wanted: Callable[[str, bytes], bool],
        on_progress: Callable[[int, int], None],
    ) -> TableRows:
        """The committed rows of tables, all of about the same moment.

        Args:
            tables: names.
            is_wanted: whether to keep the row of (table, row key).
            on_progress: told (records passed, records to pass).
        """
        ...

    async def send(
        self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes]]
    ) -> tuple[int, int]:
        """Send a record and wait until it is safe: its partition and offset."""
        ...
