"""A whole worker without a broker's process: started, released, stopped, killed by a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from bookstore_streams.engine.consumer import Consumer
from bookstore_streams.engine.engine import Engine
from bookstore_streams.engine.limits import Limits
from bookstore_streams.ports import Clock

from .backend import MemoryBackend
from .broker import MemoryBroker
from .store import MemoryDisk

# How often a worker looks for new records while it waits, in seconds of its loop.
POLL_S = 0.005


class MemoryWorker:
    """One worker on a memory broker: the real engine, fed from the topics of its consumers.

    Attributes:
        engine: of this worker.
        backend: of this worker; its `faults` and `lease_ends_ms` are for tests to set.
        fatal: what stopped the worker for good, None while nothing did.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        consumers: Iterable[Consumer],
        clock: Clock,
        *,
        app_id: str = "app",
        tables: Iterable[str] = (),
        disk: MemoryDisk | None = None,
        limits: Limits | None = None,
        session_timeout_ms: int = 10_000,
        records_max: int = 500,
    ) -> None:
        """Make a worker; it does nothing before `start`.

        Args:
            broker: where.
            consumers: of the app.
            clock: of the engine.
            app_id: workers with the same one share offsets and changelogs.
            tables: of the app, beside those of the engine.
            disk: that an earlier worker used; a new one when not given.
            limits: of the engine.
            session_timeout_ms: wait after having been fenced.
            records_max: of one fetch from one topic.
        """
        limits = Limits() if limits is None else limits
        self.backend = MemoryBackend(
            broker,
            clock,
            app_id=app_id,
            tables=tables,
            disk=disk,
            row_bytes_max=limits.row_bytes_max,
        )
        self.fatal: BaseException | None = None
        self.engine = Engine(
            self.backend,
            clock,
            limits,
            session_timeout_ms=session_timeout_ms,
            on_fatal=self._on_fatal,
        )
        for consumer in consumers:
            self.engine.add(consumer)
            broker.limit(consumer.dead_letter_topic, limits.row_bytes_max)
        self._broker = broker
        self._records_max = records_max
        self._numbers: set[int] = set()
        self._feeding: asyncio.Task[None] | None = None

    def start(self, numbers: Iterable[int] | None = None) -> None:
        """Take these partitions, all when not given, and begin to work; may be called again."""
        taken = set(range(self._broker.partitions) if numbers is None else numbers)
        self._numbers |= taken
        self.engine.assign(dict.fromkeys(taken, self.engine.topics))
        if self._feeding is None:
            self._feeding = asyncio.create_task(self._feed())

    async def release(self, numbers: Iterable[int]) -> None:
        """Commit and give these partitions back, as before a rebalance."""
        numbers = set(numbers)
        self._numbers -= numbers
        await self.engine.release(numbers)

    async def stop(self) -> None:
        """Commit and give everything back, as on SIGTERM."""
        await self._stop_feeding()
        await self.release(set(self._numbers))

    async def kill(self) -> None:
        """End as by kill -9: what is not committed is gone, a transaction may stay open."""
        self.backend.die()
        await self._stop_feeding()
        for number in self._numbers:
            partition = self.engine.open_partition(number)
            if partition is not None:
                await partition.close(commit=False)
        await self.engine.release_all()

    async def _stop_feeding(self) -> None:
        if self._feeding is not None:
            self._feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._feeding
            self._feeding = None

    async def _feed(self) -> None:
        """Hand over what is new, partition by partition; for ever."""
        while True:
            for number in sorted(self._numbers):
                for topic in sorted(self.engine.topics):
                    self._hand_over(number, topic)
            await asyncio.sleep(POLL_S)

    def _hand_over(self, number: int, topic: str) -> None:
        partition = self.engine.open_partition(number)
        if partition is None or not self.engine.accepts(number):
            return
        offset = partition.next_offsets[topic]
        records = self._broker.read(topic, number, offset, self._records_max)
        if records:
            partition.deliver(topic, records)

    def _on_fatal(self, error: BaseException) -> None:
        self.fatal = error


async def until(
    condition: Callable[[], object], timeout_s: float = 60.0, poll_s: float = 0.001
) -> None:
    """Wait until `condition` gives something true.

    Args:
        condition: asked again and again.
        timeout_s: seconds of the loop after which waiting ends.
        poll_s: seconds of the loop between two looks.

    Raises:
        TimeoutError: it never did.
    """
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - whatever it asks sets no event
            await asyncio.sleep(poll_s)
