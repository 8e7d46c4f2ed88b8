"""The partitions of this worker, and who opens, breaks and releases them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bookstore_streams.errors import InvariantError, LeaseLostError
from bookstore_streams.ports import Backend, Clock, Probe

from .consumer import Consumer
from .limits import Limits
from .partition import Partition

log = logging.getLogger(__name__)

# Between two tries to open a partition: soon at first, and not in a tight loop when the
# broker stays away.
REOPEN_S_MIN = 0.2
REOPEN_S_MAX = 5.0


def _no_probe(step: str) -> None:
    """The step of a commit that a test may watch; nobody does here."""


@dataclass(slots=True)
class _Seat:
    """A partition number that the group gave to this worker.

    Attributes:
        topics: whose partition of this number it is.
        partition: None until it is open, and while it starts again.
        task: opens it.
        restored, to_restore: records of the recovery under way.
        failures: how often in a row it did not open or broke.
        cause: of the last failure, "" when there is none.
        is_paused: whether the group is about to say who has it; nothing is opened then.
        closing: partitions of it that are being closed, by this seat or an earlier one.
    """

    topics: tuple[str, ...]
    partition: Partition | None = None
    task: asyncio.Task[None] | None = None
    restored: int = 0
    to_restore: int = 0
    failures: int = 0
    cause: str = ""
    is_paused: bool = False
    closing: list[asyncio.Task[None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SeatStatus:
    """How one partition of this worker is, for health checks and views."""

    number: int
    is_ready: bool
    restored: int
    to_restore: int
    cause: str


class Engine:
    """Runs the consumers of an app on the partitions that the group gives to this worker.

    Attributes:
        consumers: name -> consumer.
        counters: `<consumer>:<what>`, and of the engine itself `commits` and `fences` -> how
            often it happened here since the start.
        probe: told each step of each commit; replaced only by tests.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        limits: Limits,
        *,
        session_timeout_ms: int,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.consumers: dict[str, Consumer] = {}
        self.counters: Counter[str] = Counter()
        self.probe: Probe = _no_probe
        self.limits = limits
        self._backend = backend
        self._clock = clock
        self._session_timeout_s = session_timeout_ms / 1000
        self._on_fatal = on_fatal
        self._seats: dict[int, _Seat] = {}
        # What is being closed of numbers that have no seat any more.
        self._leaving: dict[int, set[asyncio.Task[None]]] = {}
        self._is_stopping = False
        self._topics: frozenset[str] = frozenset()

    def add(self, consumer: Consumer) -> None:
        """Declare a consumer, before the worker starts. Declaring it again replaces it."""
        self.consumers[consumer.name] = consumer
        self._topics = self._topics.union(consumer.topics)

    @property
    def topics(self) -> frozenset[str]:
        """Names of the topics that belong to the engine."""
        return self._topics

    # -- what the transport asks --------------------------------------------------------------

    def accepts(self, number: int) -> bool:
        """Whether records of this partition number can be delivered now."""
        seat = self._seats.get(number)
        return seat is not None and seat.partition is not None and seat.partition.has_room()

    def open_partition(self, number: int) -> Partition | None:
        """The open partition of this number, if this worker has it."""
        seat = self._seats.get(number)
        return None if seat is None else seat.partition

    def assign(self, assigned: Mapping[int, Iterable[str]], *, is_unbroken: bool = False) -> None:
        """Take what the group gave to this worker: go on with what was paused, open the rest.

        Each partition is opened in a task of its own. Paused ones that are given to others are
        closed; running ones are left alone, whether they are named or not.

        Args:
            assigned: partition number -> topics of the engine.
            is_unbroken: whether nobody else can have had a partition that this worker had
                before the pause and is given again.
        """
        if self._is_stopping:
            return
        topics = {number: tuple(sorted(names)) for number, names in assigned.items()}
        for number, seat in list(self._seats.items()):
            if not seat.is_paused:
                continue
            if is_unbroken and seat.partition and topics.get(number) == seat.topics:
                seat.is_paused = False
                seat.partition.hold.end()
                log.info("partition %s: stays, nothing of it was closed", number)
            else:
                self._leave(number, self._let_go(self._seats.pop(number)))
        for number in topics.keys() - self._seats.keys():
            self._take(number, topics[number])

    async def pause(self, numbers: Iterable[int]) -> None:
        """Let nothing run or open while the group decides anew; runs before it is joined again.

        What is finished is committed. Open partitions stay open for `assign` to go on with;
        what is not open, or does not come to a standstill in time, is closed.
        """
        asked = set(numbers)
        seats = {number: self._seats[number] for number in asked & self._seats.keys()}
        for seat in seats.values():
            seat.is_paused = True
        await asyncio.gather(*(self._pause(number, seat) for number, seat in seats.items()))
        await self._gone(asked)

    async def release(self, numbers: Iterable[int]) -> None:
        """Commit and close partitions before the group gives them away; all side by side.

        Returns when all of them are closed, whoever began that.
        """
        asked = set(numbers)
        for number in asked & self._seats.keys():
            self._leave(number, self._release(self._seats.pop(number)))
        await self._gone(asked)

    async def release_all(self) -> None:
        """Commit and close everything, for good: nothing is taken any more."""
        self._is_stopping = True
        await self.release(self._seats.keys() | self._leaving.keys())

    # -- what views ask -------------------------------------------------------------------------

    def status(self) -> list[SeatStatus]:
        """Every partition of this worker, in order of number."""
        return [
            SeatStatus(n, s.partition is not None, s.restored, s.to_restore, s.cause)
            for n, s in sorted(self._seats.items())
        ]

    def is_ready(self) -> bool:
        """Whether every partition that the group gave to this worker is open."""
        return all(seat.partition is not None for seat in self._seats.values())

    def get(self, table: str, key: bytes) -> bytes | None:
        """A committed row of a partition of this worker, None where it has none."""
        for partition in self._open_partitions():
            raw = partition.get(table, key)
            if raw is not None:
                return raw
        return None

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Committed rows of this worker; in key order within a partition only."""
        for partition in self._open_partitions():
            yield from partition.scan(table, prefix, start)

    def is_running(self, consumer: str, key: str) -> bool:
        """Whether a parked key is being tried by this worker right now."""
        return any(p.is_running(consumer, key) for p in self._open_partitions())

    def _open_partitions(self) -> list[Partition]:
        return [
            seat.partition for _, seat in sorted(self._seats.items()) if seat.partition is not None
        ]

    # -- opening and closing ------------------------------------------------------------------

    def _take(self, number: int, topics: tuple[str, ...]) -> None:
        seat = self._seats[number] = _Seat(topics, closing=list(self._leaving.get(number, ())))
        missing = self._topics.difference(topics)
        if missing:
            # Two workers with the same partition of different topics would fence each
            # other for ever; the next rebalance, with the same version everywhere, mends it.
            seat.cause = f"the group gave partition {number} of {sorted(missing)} elsewhere"
            log.error("partition %s stays closed: %s", number, seat.cause)
        else:
            self._open(number, seat, 0.0)

    async def _pause(self, number: int, seat: _Seat) -> None:
        partition = seat.partition
        try:
            if partition is not None and await partition.pause():
                return
        except Exception as error:
            if partition is seat.partition and partition is not None:
                self._broke(number, seat, partition, error)
        await self._release(seat)

    async def _let_go(self, seat: _Seat) -> None:
        """Close what another worker may have by now: all of it was committed before."""
        if seat.partition is not None:
            await seat.partition.close(commit=False)
        for task in seat.closing:
            await asyncio.wait([task])

    def _leave(self, number: int, closing: Coroutine[Any, Any, None]) -> None:
        """Close something of a number that has lost its seat; `_gone` waits for it."""
        task = asyncio.create_task(closing)
        self._leaving.setdefault(number, set()).add(task)
        task.add_done_callback(lambda done: self._left(number, done))

    def _left(self, number: int, task: asyncio.Task[None]) -> None:
        tasks = self._leaving[number]
        tasks.discard(task)
        if not tasks:
            del self._leaving[number]

    async def _gone(self, numbers: Iterable[int]) -> None:
        """Wait until nothing of these numbers is being closed any more."""
        leaving = [task for number in numbers for task in self._leaving.get(number, ())]
        if leaving:
            await asyncio.wait(leaving)

    def _open(self, number: int, seat: _Seat, delay_s: float) -> None:
        seat.task = asyncio.create_task(self._opening(number, seat, delay_s))

    async def _opening(self, number: int, seat: _Seat, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for task in seat.closing:
            await asyncio.wait([task])
        seat.closing.clear()
        started_ms = self._clock.now_ms()
        seat.restored = seat.to_restore = 0

        def on_progress(restored: int, to_restore: int) -> None:
            seat.restored, seat.to_restore = restored, to_restore

        try:
            journal, offsets = await self._backend.open(number, seat.topics, on_progress)
        except Exception as error:
            self._failed(number, seat, error)
            return
        partition = Partition(
            number,
            self.consumers.values(),
            journal,
            offsets,
            limits=self.limits,
            clock=self._clock,
            has_lease=self._backend.has_lease,
            counters=self.counters,
            probe=self.probe,
            on_failure=lambda broken, error: self._broke(number, seat, broken, error),
        )
        try:
            partition.start()
        except Exception as error:
            seat.closing.append(asyncio.create_task(partition.close(commit=False)))
            self._failed(number, seat, error)
            return
        seat.partition, seat.failures, seat.cause = partition, 0, ""
        log.info(
            "partition %s: open after %s ms, %s records restored, goes on at %s",
            number,
            self._clock.now_ms() - started_ms,
            seat.restored,
            offsets,
        )

    def _broke(self, number: int, seat: _Seat, partition: Partition, error: Exception) -> None:
        """An open partition cannot go on: let go of it, start again from what is committed."""
        if seat.partition is partition:
            seat.partition = None
        seat.closing.append(asyncio.create_task(partition.close(commit=False)))
        self._failed(number, seat, error)

    def _failed(self, number: int, seat: _Seat, error: Exception) -> None:
        if isinstance(error, InvariantError):
            self._on_fatal(error)
            return
        if self._seats.get(number) is not seat:
            return  # the group has taken it away meanwhile
        seat.failures += 1
        seat.cause = f"{type(error).__name__}: {error}"
        if seat.is_paused:  # opened now, it could fence the owner that the group is choosing
            log.error("partition %s stopped while the group rebalances (%s)", number, seat.cause)
            return
        if isinstance(error, LeaseLostError):
            # Another worker opened it. Most often it is the rightful owner: let the group
            # tell us first, opening at once would fence it in turn.
            self.counters["fences"] += 1
            delay_s = self._session_timeout_s
        else:
            delay_s = min(REOPEN_S_MIN * 2 ** min(seat.failures - 1, 16), REOPEN_S_MAX)
        log.error(
            "partition %s stopped (%s); it starts again in %.1f s from what is committed",
            number,
            seat.cause,
            delay_s,
        )
        self._open(number, seat, delay_s)

    async def _release(self, seat: _Seat) -> None:
        if seat.task is not None and not seat.task.done():
            seat.task.cancel()
            await asyncio.wait([seat.task])
        if seat.partition is not None:
            partition, seat.partition = seat.partition, None
            await partition.close(commit=True)
        for task in seat.closing:
            await asyncio.wait([task])
