"""Kafka for commands: tables read and records sent without a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from bookstore_streams.settings.area import BrokerSettings

from .produce import send
from .rows import Rows, committed_rows


class KafkaClient:
    """The brokers of an app; it connects anew for each call. See `cli.broker.Broker`."""

    def __init__(self, broker: BrokerSettings, changelogs: Callable[[], Mapping[str, str]]) -> None:
        """Make the client; nothing is connected yet.

        Args:
            broker: where.
            changelogs: table -> changelog topic, known once the app is complete.
        """
        self._broker = broker
        self._changelogs = changelogs

    async def read_tables(
        self,
        tables: Iterable[str],
        is_wanted: Callable[[str, bytes], bool],
        on_progress: Callable[[int, int], None],
    ) -> dict[str, Rows]:
        """Table -> (partition, row key) -> row, for the rows that are wanted."""
        changelogs = self._changelogs()
        table_of = {changelogs[table]: table for table in tables}
        rows = await committed_rows(
            table_of,
            lambda topic, key: is_wanted(table_of[topic], key),
            self._broker,
            on_progress,
        )
        return {table: rows[topic] for topic, table in table_of.items()}

    async def send(
        self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes]]
    ) -> tuple[int, int]:
        """Send a record and wait until it is safe: its partition and offset."""
        return await send(topic, key, value, headers, self._broker)
