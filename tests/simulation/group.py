"""The group as the broker keeps it: who is a member, who is heard of, who has which partition.

As in Kafka's classic protocol, everybody gives back before anybody takes: all partitions
(eager), those that move (cooperative), or none but stands still (pause). A member that is
not heard of for a session timeout is counted out; until then a rebalance waits for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tests.simulation.log import Given, Gone, Heard, Silent

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

# Heartbeats in a session timeout.
HEARTBEATS = 3
# A member waits this long before it joins again after it was counted out.
REJOIN_S = 0.01


class Group:
    """Members and assignment.

    Attributes:
        members: in the order in which they joined.
        is_over: whether nothing is assigned any more.
    """

    def __init__(self, world: World) -> None:
        self.members: list[Worker] = []
        self.is_over = False
        self._world = world
        self._random = random.Random(world.random.random())
        self._wanted = asyncio.Event()
        self._is_shuffling = False
        self._generation = 0
        self._session_s = world.shape.session_timeout_ms / 1000
        world.loop.spawn(world.loop.world, self._coordinate())

    # -- membership -----------------------------------------------------------------------------

    async def join(self, worker: Worker) -> None:
        """Ask to be a member."""
        await asyncio.sleep(self._world.latency_s())
        worker.is_member = True
        worker.gone = self._world.loop.create_future()
        self.members.append(worker)
        self._wanted.set()

    async def leave(self, worker: Worker) -> None:
        """Leave as on SIGTERM: commit, give back, say so, end."""
        await worker.engine.release_all()
        worker.numbers.clear()
        self._forget(worker)
        self._world.end(worker)

    def rebalance(self, *, is_shuffled: bool) -> None:
        """Let the assignment be made anew."""
        self._is_shuffling = is_shuffled
        self._wanted.set()

    def lose(self, worker: Worker) -> None:
        """Hear no more of a worker; it is counted out unless it is heard of in time."""
        if worker.lease_ends_ms is not None or not worker.is_member:
            return
        world, session_s = self._world, self._session_s
        # The last heartbeat that was answered was sent at most one interval ago.
        left_s = session_s - self._random.random() * session_s / HEARTBEATS
        worker.lease_ends_ms = world.clock.now_ms() + int(left_s * 1000)
        world.log.add(Silent(world.clock.now_ms(), worker.name, worker.lease_ends_ms))
        later_s = left_s + self._random.random() * 0.05 + 0.001
        context = world.loop.world.context.copy()
        world.loop.call_later(
            later_s, self._count_out, worker, worker.lease_ends_ms, context=context
        )

    def hear(self, worker: Worker) -> None:
        """Hear of a worker again: soon, by its next heartbeat."""
        if worker.lease_ends_ms is None or worker.process.is_dead:
            return
        delay_s = self._random.random() * self._session_s / HEARTBEATS
        context = worker.process.context.copy()
        self._world.loop.call_later(delay_s, self._heartbeat, worker, context=context)

    def _heartbeat(self, worker: Worker) -> None:
        if self._world.loop.now_s < worker.cut_until_s:
            return
        if worker.is_member:
            self._is_heard(worker)
        else:
            self._world.loop.spawn(worker.process, self._rejoin(worker))

    def _is_heard(self, worker: Worker) -> None:
        worker.lease_ends_ms = None
        self._world.log.add(Heard(self._world.clock.now_ms(), worker.name))

    async def _rejoin(self, worker: Worker) -> None:
        """What a member does that learns that it was counted out."""
        if worker.numbers:
            await _in_turn(worker, worker.release, worker.numbers)
        await asyncio.sleep(REJOIN_S)
        if not worker.is_member:
            self._is_heard(worker)
            await self.join(worker)

    def _count_out(self, worker: Worker, lease_ends_ms: int) -> None:
        if worker.is_member and worker.lease_ends_ms == lease_ends_ms:
            self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        worker.is_member = False
        worker.generation = -1
        if worker in self.members:
            self.members.remove(worker)
        if not worker.gone.done():
            worker.gone.set_result(None)
        self._wanted.set()

    def died(self, worker: Worker) -> None:
        """A process is no more; the group does not know it yet."""
        self._world.log.add(Gone(self._world.clock.now_ms(), worker.name))
        self.lose(worker)

    # -- assignment -----------------------------------------------------------------------------

    async def _coordinate(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await asyncio.sleep(0.001)
            if self.is_over:
                return
            target = self._assignment()
            for worker, task in self._revoke(target):
                await asyncio.wait([task, worker.gone], return_when=asyncio.FIRST_COMPLETED)
            self._generation += 1
            self._world.log.add(Given(self._world.clock.now_ms(), self._generation, target))
            for worker in list(self.members):
                if worker.name in target:
                    self._give(worker, target[worker.name])

    def _revoke(self, target: dict[str, set[int]]) -> list[tuple[Worker, asyncio.Task[None]]]:
        """Begin to take back what may move; members and what they do about it."""
        rebalance, revoking = self._world.shape.rebalance, []
        for worker in list(self.members):
            numbers = set(worker.numbers)
            if rebalance == "cooperative":
                numbers -= target[worker.name]
            if not numbers and not (worker.process.is_frozen or worker.process.is_dead):
                continue
            give_back = worker.engine.pause if rebalance == "pause" else worker.release
            task = self._world.loop.spawn(worker.process, _in_turn(worker, give_back, numbers))
            revoking.append((worker, task))
        return revoking

    def _give(self, worker: Worker, numbers: set[int]) -> None:
        is_unbroken = worker.generation == self._generation - 1
        worker.generation = self._generation
        taken = numbers - worker.numbers
        if self._world.shape.rebalance == "pause":
            worker.numbers = set(numbers)
            given = numbers
        else:
            worker.numbers |= taken
            given = taken
        if given or worker.engine.status():
            giving = self._assign(worker, given, is_unbroken)
            self._world.loop.spawn(worker.process, giving)

    async def _assign(self, worker: Worker, numbers: set[int], is_unbroken: bool) -> None:
        async with worker.joining:
            # Not everybody hears at the same time what the group has decided.
            await asyncio.sleep(self._world.draw_delay_s())
            # Also when it was counted out meanwhile: it does not know that yet.
            given = dict.fromkeys(sorted(numbers), worker.engine.topics)
            worker.engine.assign(given, is_unbroken=is_unbroken)
            worker.news.set()

    def _assignment(self) -> dict[str, set[int]]:
        """Worker name -> partitions; those that stay do so unless it is shuffled."""
        members = [worker for worker in self.members if worker.is_member]
        target: dict[str, set[int]] = {worker.name: set() for worker in members}
        if not members:
            return target
        owner = {n: worker.name for worker in members for n in worker.numbers}
        share = -(-self._world.shape.partitions // len(members))
        for number in range(self._world.shape.partitions):
            name = owner.get(number)
            if self._is_shuffling or name is None or len(target[name]) >= share:
                name = self._another(name if self._is_shuffling else None, target)
            target[name].add(number)
        self._is_shuffling = False
        return target

    def _another(self, owner: str | None, target: dict[str, set[int]]) -> str:
        """Who gets a partition: somebody with few, and another than its owner where it can be."""
        least = min(len(numbers) for numbers in target.values())
        idle = [name for name, numbers in target.items() if len(numbers) == least]
        return self._random.choice([name for name in idle if name != owner] or idle)


async def _in_turn(
    worker: Worker, what: Callable[[set[int]], Awaitable[None]], numbers: set[int]
) -> None:
    """A client does one thing after another with what the group tells it."""
    async with worker.joining:
        await what(numbers)
