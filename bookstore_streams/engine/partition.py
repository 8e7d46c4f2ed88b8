"""One partition of the engine: takes records, gives each message its turn, commits what is done.

Owns the life of the partition, its reading and its worker tasks; what happens in a turn is
in `turns`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bookstore_streams.core.parking import split_parked_key
from bookstore_streams.core.watermark import Watermark
from bookstore_streams.ports import Clock, Journal, Probe, Record

from .calls import Calls
from .carry_out import CarryOut
from .commit import Committer
from .consumer import Consumer
from .hold import Hold
from .lanes import RunQueue
from .limits import Limits
from .parking_lot import ParkingLot, due_ms_of
from .staging import Staging
from .tables import PARKED_KEYS
from .turns import Turns
from .unit_of_work import Surroundings

log = logging.getLogger(__name__)

# A worker task gives the loop a chance after this many messages that never had to wait.
TURNS_PER_YIELD = 100


class Partition:
    """Everything this worker does for one partition number, over all topics of its consumers.

    Attributes:
        number: of the partition.
        next_offsets: topic -> offset of the next record to take; lower ones are known.
        hold: keeps it still after `pause`.
    """

    def __init__(
        self,
        number: int,
        consumers: Iterable[Consumer],
        journal: Journal,
        offsets: Mapping[str, int],
        *,
        limits: Limits,
        clock: Clock,
        has_lease: Callable[[], bool],
        counters: Counter[str],
        probe: Probe,
        on_failure: Callable[[Partition, Exception], None],
    ) -> None:
        """Set up; nothing runs before `start`.

        Args:
            number: of the partition.
            consumers: all of the app.
            journal: of the partition, open.
            offsets: topic -> offset of the first record to take.
            limits: bounds.
            clock: epoch time.
            has_lease: whether this worker may act as the owner.
            counters: of the engine.
            probe: told each step of each commit.
            on_failure: told once when the partition cannot go on.
        """
        self.number = number
        self.next_offsets = dict(offsets)
        self._consumers = {consumer.name: consumer for consumer in consumers}
        self._readers = {
            topic: tuple(c for c in self._consumers.values() if topic in c.topics)
            for topic in offsets
        }
        self._watermarks = {topic: Watermark() for topic in offsets}
        self._journal = journal
        self._store = journal.store
        self._limits = limits
        self._clock = clock
        self._counters = counters
        self._on_failure = on_failure
        self._queue = RunQueue()
        self._lot = ParkingLot(clock)
        staging = Staging(journal.store)
        self.hold = Hold(self._queue, has_lease)
        around = Surroundings(
            staging.get, self.hold.has_lease, limits.message_bytes_max, journal.store.tables
        )
        self._calls = Calls(around, clock=clock, counters=counters)
        self._committer = Committer(
            journal,
            staging,
            self._watermarks,
            limits=limits,
            counters=counters,
            probe=probe,
            on_failure=self._break,
        )
        self._turns = Turns(
            self._consumers.values(),
            self._queue,
            self._lot,
            staging,
            self._calls,
            CarryOut(
                staging, self._calls, self._lot, limits=limits, clock=clock, counters=counters
            ),
            self._committer,
            limits=limits,
            clock=clock,
            counters=counters,
        )
        self._is_closing = False
        self._closed: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Worker tasks that have a lane in hand right now.
        self._busy: set[asyncio.Task[None]] = set()

    # -- life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Schedule the parked keys, then begin to work."""
        parked: dict[str, list[tuple[str, int | None]]] = {name: [] for name in self._consumers}
        orphans: Counter[str] = Counter()
        for row_key, raw in self._store.scan(PARKED_KEYS):
            name, key = split_parked_key(row_key)
            if name in parked:
                parked[name].append((key, due_ms_of(raw)))
            else:
                orphans[name] += 1
        for name, keys in parked.items():
            self._lot.fill(name, keys)
        for name, count in orphans.items():
            self._counters[f"{name}:parked_without_consumer"] += count
            log.warning(
                "%s keys are parked for consumer %r, which this app does not have: they wait "
                "until there is one again.",
                count,
                name,
            )
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._limits.concurrency)]
        self._tasks.append(
            asyncio.create_task(
                self._keep(self._lot.wake(self._turns.on_due, self._turns.has_room))
            )
        )
        self._tasks.append(asyncio.create_task(self._keep(self._calls.watch())))
        self._committer.start()

    async def _keep(self, running: Coroutine[Any, Any, None]) -> None:
        """Await something that runs for ever; what ends it ends the partition."""
        try:
            await running
        except Exception as error:
            self._break(error)

    @property
    def backlog(self) -> int:
        """Records in memory that the watermark has not passed."""
        return sum(map(len, self._watermarks.values()))

    def has_room(self) -> bool:
        """Whether more records may be delivered."""
        return not self._is_closing and self.backlog < self._limits.backlog_max

    async def close(self, *, commit: bool) -> None:
        """Take nothing new, let running handlers end, commit them, give everything back.

        Idempotent; a second call waits for the first.

        Args:
            commit: whether to commit what is finished; never done after a failed commit.
        """
        if self._closed is None:
            self._closed = asyncio.create_task(self._close(commit))
        await asyncio.shield(self._closed)

    async def _close(self, commit: bool) -> None:
        self._is_closing = True
        # Four tenths of the time for running handlers, three for commits; the rest is for
        # giving back the connections and leaving the group.
        tenth_s = self._limits.shutdown_ms / 10_000
        closing = asyncio.create_task(self._committer.close(tenth_s))
        is_waiting = commit and not self._committer.is_broken and not self.hold.is_taken
        busy = self._busy - self._calls.without_lease if is_waiting else set()
        for task in self._tasks:
            if task not in busy:
                task.cancel()
        try:
            if busy:
                await asyncio.wait(busy, timeout=4 * tenth_s)
            for task in busy:
                task.cancel()  # its unit of work was never staged
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=tenth_s)
            await closing
            if commit:
                await asyncio.wait_for(self._committer.commit(), 2 * tenth_s)
        except Exception as error:
            # Nothing is lost: the next owner goes on from what is committed.
            log.warning("partition %s: the last commit failed: %r", self.number, error)
        finally:
            try:
                await self._journal.close()
            except Exception as error:  # the next owner fences whatever is left of it
                log.warning("partition %s was not closed cleanly: %r", self.number, error)

    async def pause(self) -> bool:
        """Let handlers end, commit, and start nothing until `hold` ends; whether all is still."""
        tenth_s = self._limits.shutdown_ms / 10_000
        is_still = await self.hold.take(self._busy, self._calls.without_lease, 4 * tenth_s)
        if is_still:
            await asyncio.wait_for(self._committer.commit(), 2 * tenth_s)
        return is_still and not self._committer.is_broken

    def _break(self, error: Exception) -> None:
        """Stop at once; the engine starts the partition again from what is committed."""
        self._committer.is_broken = True
        if not self._is_closing:
            self._is_closing = True
            self._on_failure(self, error)

    # -- reading ----------------------------------------------------------------------------

    def get(self, table: str, key: bytes) -> bytes | None:
        """A committed row; what is staged is not shown to anybody but handlers."""
        return self._store.get(table, key)

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Committed rows in key order."""
        return self._store.scan(table, prefix, start)

    def is_running(self, consumer: str, key: str) -> bool:
        """Whether a parked key is being tried right now."""
        return self._turns.is_running(consumer, key)

    # -- taking records ---------------------------------------------------------------------

    def deliver(self, topic: str, records: Sequence[Record]) -> None:
        """Take a whole batch from the fetcher, in offset order.

        Records below the next expected offset are known already and passed over: Faust
        seeks back to committed offsets after a rebalance.
        """
        try:
            self._deliver(topic, records)
        except Exception as error:  # not the fetcher's: it would stop the whole worker
            self._break(error)

    def _deliver(self, topic: str, records: Sequence[Record]) -> None:
        expected = self.next_offsets[topic]
        readers, watermark = self._readers[topic], self._watermarks[topic]
        arrivals = self._queue.arrivals
        for record in records:
            if record.offset < expected:
                continue
            slot = watermark.take(record.offset, len(readers))
            for consumer in readers:
                arrivals.append((consumer, record, slot))
        self.next_offsets[topic] = max(expected, records[-1].offset + 1)
        self._queue.wake()

    # -- giving turns -----------------------------------------------------------------------

    async def _work(self) -> None:
        """Give turns for ever: one key at a time here, other keys in the other tasks."""
        queue, committer, busy, turns = self._queue, self._committer, self._busy, self._turns
        task = asyncio.current_task()
        assert task is not None
        given = 0
        while not self._is_closing:
            if committer.is_behind:
                await committer.catch_up()
                continue
            next_up = queue.next()
            if next_up is None:
                committer.nothing_to_do()
                await queue.wait()
                continue
            try:
                lane = turns.arrive(*next_up) if isinstance(next_up, tuple) else next_up
                if lane is not None:
                    queue.wake()  # another task goes on while this one may have to wait
                    busy.add(task)
                    await turns.run(lane)
            except Exception as error:  # a defect, or the store: never go on with a guess
                self._break(error)
                return
            finally:
                busy.discard(task)
            given += 1
            if not given % TURNS_PER_YIELD:
                await asyncio.sleep(0)
