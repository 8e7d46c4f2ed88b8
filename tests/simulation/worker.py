"""One simulated worker process: the real engine, fed from the broker, known to the group."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bookstore_streams.engine.engine import Engine
from bookstore_streams.errors import ConnectionLostError
from tests.simulation.backend import REQUEST_TIMEOUT_S, Backend, Disk, nevermore
from tests.simulation.clock import Clock
from tests.simulation.log import Entry

if TYPE_CHECKING:
    from tests.simulation.world import World

# How soon a worker looks again at a partition that has no room for its records.
ROOM_POLL_S = 0.05


class Worker:
    """A process that takes part in the group until it is killed or leaves.

    Attributes:
        name: in the log.
        process: of the loop.
        engine: the real one.
        disk: outlives the worker.
        clock: of its machine.
        errors: point -> what the next answer there is.
        late_s: set when the next commit request is to arrive that much too late.
        cut_until_s: time of the loop until which it reaches neither broker nor group.
        lease_ends_ms: set while the group does not hear of it.
        is_member: whether the group counts it in.
        gone: done once the group waits for it no more.
        numbers: partitions that the group gave to it.
        generation: of the group, in which it was given them; -1 in none.
        fatal: what stopped it for good.
        joining: held by whoever follows what the group says.
    """

    def __init__(self, world: World, name: str, disk: Disk) -> None:
        self.world = world
        self.name = name
        self.process = world.loop.add(name)
        self.disk = disk
        self.clock = Clock(world.loop)
        self.errors: dict[str, BaseException] = {}
        self.late_s: float | None = None
        self.cut_until_s = 0.0
        self.lease_ends_ms: int | None = None
        self.is_member = False
        self.gone: asyncio.Future[None] = world.loop.create_future()
        self.numbers: set[int] = set()
        self.generation = -1
        self.fatal: BaseException | None = None
        self.joining = asyncio.Lock()
        self.news = asyncio.Event()
        self._records_max = world.shape.records_max
        self._random = random.Random(world.random.random())
        self.engine = Engine(
            Backend(self),
            self.clock,
            world.shape.limits,
            session_timeout_ms=world.shape.session_timeout_ms,
            on_fatal=self._on_fatal,
        )
        for consumer in world.shop.consumers(self):
            self.engine.add(consumer)
        world.loop.spawn(self.process, self._live())

    async def _live(self) -> None:
        await self.world.group.join(self)
        await self._feed()

    def now_ms(self) -> int:
        """Epoch ms, as everybody else has it."""
        return self.world.clock.now_ms()

    def tell(self, entry: Entry) -> None:
        """Add to the log; the dead tell nothing."""
        if not self.process.is_dead:
            self.world.log.add(entry)

    def has_lease(self) -> bool:
        """Whether the group has heard of this worker within a session timeout."""
        return self.lease_ends_ms is None or self.now_ms() < self.lease_ends_ms

    # -- points ---------------------------------------------------------------------------------

    async def point(self, name: str) -> None:
        """Wait for an answer of the broker; whatever can go wrong then does it here."""
        await asyncio.sleep(self.world.latency_s())
        self.reach(name)
        process = self.process
        if process.is_dead:
            await nevermore()
        if process.is_frozen:
            await asyncio.sleep(0)
        if self.cut_until_s > self.world.loop.now_s:
            await self._cut_off()
        if self.errors and (error := self.errors.pop(name, None)) is not None:
            raise error

    def reach(self, name: str) -> None:
        """Pass a point that cannot wait."""
        self.world.plan.reached(self, name)

    async def _cut_off(self) -> None:
        left_s = self.cut_until_s - self.world.loop.now_s
        await asyncio.sleep(min(left_s, REQUEST_TIMEOUT_S))
        if self.cut_until_s > self.world.loop.now_s:
            raise ConnectionLostError("The network is cut.", "simulation")

    def wrote(self, number: int) -> None:
        """A store was written to: now and then a picture of it is kept."""
        if self.world.shape.keeps_pictures and self._random.random() < 0.3:
            self.disk.remember(number)

    # -- what the group does -------------------------------------------------------------------

    async def release(self, numbers: Iterable[int]) -> None:
        """Commit and give these partitions back."""
        numbers = set(numbers)
        await self.engine.release(numbers)
        self.numbers -= numbers

    def _on_fatal(self, error: BaseException) -> None:
        self.fatal = error
        if not self.process.is_dead:
            self.world.fail(error)

    # -- fetching -------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Hand over what is new; for ever."""
        news, world = self.news, self.world
        while True:
            await news.wait()
            news.clear()
            await asyncio.sleep(world.latency_s())
            if self.cut_until_s > world.loop.now_s:
                await asyncio.sleep(self.cut_until_s - world.loop.now_s)
            if self._hand_over():
                world.loop.call_later(ROOM_POLL_S, news.set)

    def _hand_over(self) -> bool:
        """Deliver what there is; whether something is left that had no room."""
        engine, broker, is_left = self.engine, self.world.broker, False
        for number in sorted(self.numbers):
            partition = engine.open_partition(number)
            if partition is None:
                continue
            for topic in sorted(engine.topics):
                offset = partition.next_offsets[topic]
                again = self._random.random() < self.world.shape.redelivery
                if again:  # Faust seeks back to committed offsets after a rebalance
                    offset = max(0, offset - self._random.randint(1, 3))
                if broker.end(topic, number) <= offset:
                    continue
                if not engine.accepts(number):
                    is_left = True
                    continue
                records = broker.read(topic, number, offset, self._records_max)
                if records and self._random.random() >= self.world.shape.loss:
                    partition.deliver(topic, records)
                is_left = is_left or broker.end(topic, number) > partition.next_offsets[topic]
        return is_left
