"""Everything at once: workers killed at any moment, their broker too, connections held and cut."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable

from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import DONE, Campaign
from tests.chaos.proxy import Api, Link, Way, When
from tests.chaos.shop import WorkerProcess

STEPS = (
    "opening",
    "opened",
    "before-transaction",
    "after-sends",
    "after-commit",
    "after-store",
)
# "starting" is a moment before the group is joined, "joining" one at which it may be or not,
# "working" one after a commit.
MOMENTS = (*STEPS, *STEPS[2:], "starting", "joining", "working", "working")
#: A worker that has not come to its moment after this long is killed where it is.
LIFE_S_MAX = 40.0
COUNT_MAX = 4
WIPED = 0.3
#: Records expected and not seen yet, at which no more is sent.
BACKLOG_MAX = 120
#: After the last request so much time for the broker to end what it has decided.
SETTLES_S = 2.0
COMMITTING = (Api.PRODUCE, Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT, Api.END_TXN)
POLL_S = 0.05


class Storm:
    """Workers, each behind a link of its own, that are killed and started again.

    Attributes:
        killed: moment -> how many workers died at it.
    """

    def __init__(
        self,
        orders: Campaign,
        broker: Broker,
        workers: list[WorkerProcess],
        links: list[Link],
        source: random.Random,
        kills_per_broker_kill: int,
    ) -> None:
        self.killed: Counter[str] = Counter()
        self._orders = orders
        self._broker = broker
        self._workers = workers
        self._links = links
        self._source = source
        self._kills_per_broker_kill = kills_per_broker_kill
        self._until = 0
        self._moments: deque[str] = deque()
        self._has_broker = asyncio.Event()
        self._has_broker.set()

    async def blow(self, kills: int) -> None:
        """Kill workers so many times more, and everything else beside it; leaves none running."""
        self._until = self.killed.total() + kills
        lives = [
            asyncio.create_task(self._lives(worker, link))
            for worker, link in zip(self._workers, self._links, strict=True)
        ]
        weather = [
            asyncio.create_task(each()) for each in (self._feed, self._disturb, self._kill_broker)
        ]
        try:
            await asyncio.gather(*lives)
            self._until = 0  # the broker may be away: it comes back first
            await asyncio.gather(*weather)
        finally:
            for task in (*lives, *weather):
                task.cancel()
            await asyncio.gather(*lives, *weather, return_exceptions=True)

    @property
    def _goes_on(self) -> bool:
        return self.killed.total() < self._until

    # -- workers ------------------------------------------------------------------------------

    async def _lives(self, worker: WorkerProcess, link: Link) -> None:
        while self._goes_on:
            await self._has_broker.wait()
            moment = self._next_moment()
            if self._source.random() < WIPED:
                worker.wipe()
            at = (moment, self._source.randint(1, COUNT_MAX)) if moment in STEPS else None
            worker.start(at=at, is_traced=True)
            moment = await self._live(worker, moment)
            status = await asyncio.to_thread(worker.kill)
            if status == 1:
                assert worker.has_found_no_broker(), worker.tail(80)
                DONE["starts that found no broker"] += 1
                await asyncio.sleep(POLL_S)
            else:
                assert status == -9, worker.tail()
                self.killed[moment] += 1
                DONE["workers killed"] += 1

    async def _live(self, worker: WorkerProcess, moment: str) -> str:
        """Return when it is to be killed, or is dead; says at which moment that was."""
        source, started = self._source, time.monotonic()

        async def until(is_there: Callable[[], bool]) -> bool:
            while worker.is_running() and not is_there():
                if time.monotonic() - started > LIFE_S_MAX:
                    return False
                await asyncio.sleep(POLL_S)
            return True

        async def for_s(seconds: float) -> None:
            ends = time.monotonic() + seconds
            await until(lambda: time.monotonic() >= ends)

        if moment == "starting":
            await for_s(source.uniform(0.0, 2.5))
        elif moment == "joining":
            await for_s(source.uniform(2.5, 9.0))
        elif moment == "working":
            if not await until(lambda: worker.commits() > 0):
                return "late"
            await for_s(source.uniform(0.0, 1.0))
        elif not await until(lambda: False):
            return "late"
        return moment

    def _next_moment(self) -> str:
        if not self._moments:
            self._moments.extend(self._source.sample(MOMENTS, len(MOMENTS)))
        return self._moments.popleft()

    # -- everything else ----------------------------------------------------------------------

    async def _feed(self) -> None:
        while self._goes_on:
            if self._orders.backlog() < BACKLOG_MAX and self._has_broker.is_set():
                await self._orders.feed(4)
            await asyncio.sleep(0.5)

    async def _disturb(self) -> None:
        """Hold, cut and slow down connections, one link at a time."""
        source = self._source
        while self._goes_on:
            await asyncio.sleep(source.uniform(1.0, 4.0))
            if self._has_broker.is_set():
                link = source.choice(self._links)
                fault = source.choices(
                    (self._cut, self._cut_at, self._hold, self._hold_answers, self._slow),
                    (3, 5, 3, 3, 1),
                )[0]
                await self._shaking(fault(link))

    async def _cut(self, link: Link) -> None:
        DONE["times that all connections of a worker were cut"] += 1
        link.cut()

    async def _cut_at(self, link: Link) -> None:
        sprung = link.cut_at(self._source.choice(COMMITTING), self._source.choice(tuple(When)))
        await asyncio.sleep(2.0)
        link.disarm()
        if sprung.is_set():
            DONE["connections cut in a commit"] += 1

    async def _hold(self, link: Link) -> None:
        # One in eight is longer than a session.
        is_long = self._source.random() < 1 / 8
        seconds = self._source.uniform(6.5, 9.0) if is_long else self._source.uniform(0.3, 2.0)
        DONE["times that a worker's connections were held"] += 1
        link.hold()
        await asyncio.sleep(seconds)
        link.release()

    async def _hold_answers(self, link: Link) -> None:
        DONE["times that a worker's answers were lost"] += 1
        link.hold(Way.ANSWERS)
        await asyncio.sleep(self._source.uniform(0.5, 3.0))
        link.lose()

    async def _slow(self, link: Link) -> None:
        DONE["times that a worker's connections were slow"] += 1
        link.delay_s = self._source.uniform(0.01, 0.1)
        await asyncio.sleep(3.0)
        link.delay_s = 0.0

    async def _shaking(self, fault: Awaitable[None]) -> None:
        """Calls may come again after any moment of a fault, and shortly after it."""
        task = asyncio.ensure_future(fault)
        while not task.done():
            self._orders.shaken()
            await asyncio.wait([task], timeout=0.5)
        await task
        for _ in range(3):
            self._orders.shaken()
            await asyncio.sleep(0.5)

    async def _kill_broker(self) -> None:
        """Kill it once in so many kills, when no commit is being decided (docs/guarantees.md)."""
        every = self._kills_per_broker_kill
        due = self.killed.total() + every // 2
        while self._goes_on:
            await asyncio.sleep(POLL_S)
            if self.killed.total() >= due:
                due += every
                await self._shaking(self._power_cut())

    async def _power_cut(self) -> None:
        self._has_broker.clear()
        for link in self._links:
            link.hold(Way.REQUESTS)
        await asyncio.sleep(SETTLES_S)
        await asyncio.to_thread(self._broker.kill)
        DONE["brokers killed"] += 1
        await asyncio.sleep(self._source.uniform(0.0, 2.0))
        await asyncio.to_thread(self._broker.start)
        for link in self._links:
            link.lose()
        self._has_broker.set()
