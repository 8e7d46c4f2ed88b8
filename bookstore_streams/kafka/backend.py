"""Opens partitions on Kafka: fence, recover, and only then ask where to go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from bookstore_streams.errors import BookstoreError, StaleRecordError
from bookstore_streams.settings import Settings

from .connection import translated
from .journal import KafkaJournal
from .lease import Lease
from .recovery import Recovery
from .rocks import StoreResources
from .store import LocalStore

# Producers that start at the same time: each makes two connections and asks the broker for its
# id, and one that waits too long for that has failed.
STARTS_MAX = 16


class SourceConsumer(Protocol):
    """What the worker's group consumer does for the engine."""

    async def committed_offsets(self, number: int, topics: Iterable[str]) -> dict[str, int]:
        """Topic -> committed offset; topics without one are left out."""
        ...

    async def seek_all(self, number: int, offsets: Mapping[str, int]) -> None:
        """Let fetching go on at these offsets."""
        ...


class KafkaBackend:
    """What the engine asks Kafka and the local disk for; see `ports.Backend`.

    Attributes:
        has_lease: whether the group still counts this worker as alive.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        changelogs: Callable[[], dict[str, str]],
        consumer: Callable[[], SourceConsumer],
        lease: Lease,
    ) -> None:
        """Make the backend; it connects to nothing before a partition is opened.

        Args:
            settings: of the app.
            directory: of this worker, one sub-directory a partition.
            changelogs: table -> changelog topic, known once the app is complete.
            consumer: the group consumer, known once the worker runs.
            lease: of this worker.
        """
        # Asked before every call of a handler: no detour.
        self.has_lease = lease.holds
        self._settings = settings
        self._directory = directory
        self._changelogs = changelogs
        self._consumer = consumer
        self._resources: StoreResources | None = None
        self._recovery = Recovery(settings.broker)
        self._starts = asyncio.Semaphore(STARTS_MAX)

    async def open(
        self, number: int, topics: Iterable[str], on_progress: Callable[[int, int], None]
    ) -> tuple[KafkaJournal, dict[str, int]]:
        """Fence the former owner, recover, and say where each topic goes on."""
        changelogs, sources = self._changelogs(), tuple(topics)
        journal = KafkaJournal(self._settings, number, changelogs)
        fencing = asyncio.create_task(self._fence(journal))
        try:
            async with self._recovery.reader(
                changelogs.values(), sources, self._settings.topics.partitions
            ) as reader:
                await fencing
                journal.store = self._open_store(number, changelogs)
                ids = reader.ids
                journal.store.follow({t: ids[c] for t, c in changelogs.items() if c in ids})
                arguments = journal.store, changelogs, number, sources, on_progress
                try:
                    first = await reader.recover(*arguments)
                except StaleRecordError as error:
                    journal.store.reset(str(error))
                    first = await reader.recover(*arguments)
            # Only after fencing: the former owner can no longer move these offsets.
            committed = await self._consumer().committed_offsets(number, sources)
            # Retention may have removed what was committed next.
            offsets = {t: max(committed.get(t, 0), first[t]) for t in sources}
            await self._consumer().seek_all(number, offsets)
        except BaseException as error:
            fencing.cancel()
            await asyncio.gather(fencing, return_exceptions=True)
            await journal.close()
            if isinstance(error, BookstoreError) or not isinstance(error, Exception):
                raise
            raise translated(error, f"opening partition {number}") from error
        return journal, offsets

    async def _fence(self, journal: KafkaJournal) -> None:
        async with self._starts:
            await journal.start()

    def _open_store(self, number: int, changelogs: dict[str, str]) -> LocalStore:
        store = self._settings.store
        if self._resources is None:
            self._resources = StoreResources(store.cache_bytes, store.write_buffer_bytes)
        return LocalStore(
            self._directory / f"partition-{number}",
            changelogs,
            self._resources,
            expiring={"inbox": self._settings.inbox.retention_ms},
            trusted_for_ms=store.changelog_retention_ms,
        )
