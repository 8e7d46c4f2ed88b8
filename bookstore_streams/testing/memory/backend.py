"""What one worker's engine asks a memory broker and its disk for; see `ports`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bookstore_streams.engine.limits import Limits
from bookstore_streams.engine.tables import INBOX, PARKED_KEYS, PARKED_MESSAGES
from bookstore_streams.ports import Batch, Clock, Probe

from .broker import MemoryBroker
from .fault import Faults
from .store import MemoryDisk, MemoryStore


class MemoryJournal:
    """Commits of one partition; see `ports.Journal`.

    Attributes:
        store: the local copy.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        app_id: str,
        number: int,
        epoch: int,
        store: MemoryStore,
        faults: Faults,
    ) -> None:
        self._store = store
        self._broker = broker
        self._app_id = app_id
        self._number = number
        self._transactional = (f"{app_id}-{number}", epoch)
        self._faults = faults

    @property
    def store(self) -> MemoryStore:
        """The local copy, recovered to the end of the changelogs."""
        return self._store

    async def commit(self, batch: Batch, probe: Probe) -> dict[str, int]:
        """Publish everything in `batch` in one transaction."""
        broker, me, number = self._broker, self._transactional, self._number
        await self._faults.reach("begin")
        broker.begin(*me)
        await self._faults.reach("send")
        for topic, key, value, headers in batch.emissions:
            broker.send(*me, topic, None, key, value, headers)
        positions: dict[str, int] = {}
        for table, rows in batch.writes.items():
            for row_key, row in rows.items():
                sent = broker.send(*me, changelog(self._app_id, table), number, row_key, row, ())
                positions[table] = sent.offset + 1
        for topic, mark in batch.marks.items():
            broker.send_offset(*me, self._app_id, topic, number, mark)
        probe("after-sends")
        await self._faults.reach("commit")
        broker.commit(*me)
        await self._faults.reach("committed")
        return positions

    async def close(self) -> None:
        """Give the store back. An open transaction is left to be aborted, as on Kafka."""
        try:
            await self._faults.reach("close")
        finally:
            self.store.close()


class MemoryBackend:
    """What one worker's engine asks for; see `ports.Backend`.

    Attributes:
        faults: what goes wrong here.
        lease_ends_ms: epoch ms at which the group stops counting this worker as alive;
            None while it is alive.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        clock: Clock,
        *,
        app_id: str = "app",
        tables: Iterable[str] = (),
        disk: MemoryDisk | None = None,
        row_bytes_max: int = Limits().row_bytes_max,
    ) -> None:
        """Make the backend of one worker.

        Args:
            broker: where.
            clock: that the lease goes by.
            app_id: group, and what transactional ids and changelogs begin with.
            tables: of the app, beside those of the engine.
            disk: of the worker; a new one when not given.
            row_bytes_max: what the changelogs take.
        """
        self.broker = broker
        self.app_id = app_id
        self.disk = MemoryDisk() if disk is None else disk
        self.faults = Faults()
        self.lease_ends_ms: int | None = None
        self.tables = tuple({INBOX, PARKED_KEYS, PARKED_MESSAGES, *tables})
        self._clock = clock
        for table in self.tables:
            broker.limit(changelog(app_id, table), row_bytes_max)

    def has_lease(self) -> bool:
        """Whether the group still counts this worker as alive."""
        return self.lease_ends_ms is None or self._clock.now_ms() < self.lease_ends_ms

    async def open(
        self, number: int, topics: Iterable[str], on_progress: Callable[[int, int], None]
    ) -> tuple[MemoryJournal, dict[str, int]]:
        """Fence the former owner, recover, and say where each topic goes on."""
        await self.faults.reach("open")
        epoch = self.broker.fence(f"{self.app_id}-{number}")
        store = MemoryStore(self.disk.files(number), self.tables, self.faults)
        try:
            await self.faults.reach("recover")
            self._recover(store, number, on_progress)
        except BaseException:
            store.close()
            raise
        journal = MemoryJournal(self.broker, self.app_id, number, epoch, store, self.faults)
        offsets = {
            topic: self.broker.committed(self.app_id, topic, number) or 0 for topic in topics
        }
        return journal, offsets

    def die(self) -> None:
        """Do what kill -9 does: nothing more is written by this worker, here or at the broker."""
        self.faults.is_dead = True
        self.disk.unlock()

    def _recover(
        self, store: MemoryStore, number: int, on_progress: Callable[[int, int], None]
    ) -> None:
        ends = {
            table: self.broker.end(changelog(self.app_id, table), number) for table in self.tables
        }
        if any(store.position(table) > end for table, end in ends.items()):
            store.reset()  # it is of another broker's changelogs
        to_restore = sum(end - store.position(table) for table, end in ends.items())
        restored = 0
        for table, end in ends.items():
            position = store.position(table)
            records = self.broker.read(changelog(self.app_id, table), number, position)
            rows = {record.key or b"": record.value for record in records}
            store.apply({table: rows}, {table: end})
            restored += end - position
            on_progress(restored, to_restore)


def changelog(app_id: str, table: str) -> str:
    """Name of a table's changelog topic."""
    return f"{app_id}-{table}-changelog"
