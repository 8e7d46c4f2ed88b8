"""Orders over a running shop: fed in portions, watched from outside, judged at the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bookstore_streams.testing.brokers import Broker
from tests.chaos.judge import is_complete, judge
from tests.chaos.load import SETTINGS, Order
from tests.chaos.nest import Nest
from tests.chaos.shop import DEAD_LETTERS, PAYMENTS, Shop, Tail, WorkerProcess, until

# Chaos tests have a broker of their own; fewer partitions mean fewer producers to start.
PARTITIONS = 4

#: What was done to workers, brokers and connections in this run, for its summary.
DONE: Counter[str] = Counter()


class Campaign:
    """So many orders on their way through a shop.

    Attributes:
        shop: that handles them.
        orders: all of them.
        tail: what readers of committed records have seen.
        crashes_ms: when something happened after which calls may come again, epoch ms, but
            for killed workers, who keep their own.
    """

    def __init__(self, shop: Shop, orders: list[Order], tail: Tail, seed: int) -> None:
        self.shop = shop
        self.orders = orders
        self.tail = tail
        self.crashes_ms: list[int] = []
        self._seed = seed
        self._next = 0

    @property
    def sent(self) -> list[Order]:
        """The orders fed so far."""
        return self.orders[: self._next]

    async def feed(self, count: int | None = None) -> None:
        """Send the next orders, all that are left without a count; returns when they are kept."""
        portion = self.orders[self._next :][:count]
        self._next += len(portion)
        sending: list[Awaitable[Any]] = []
        for order in portion:
            for message in order.messages:
                for _ in range(message.copies):
                    sending.append(
                        await self.shop.enqueue(
                            order.order_id, message.document, message.message_id
                        )
                    )
        await asyncio.gather(*sending)

    def backlog(self) -> int:
        """Records that must come of what was sent, and were not seen yet."""
        expected = sum(len(order.events) + len(order.letters) for order in self.sent)
        return expected - len(self.tail.records)

    async def progress(self, records: int, within_s: float, *workers: WorkerProcess) -> float:
        """Wait until so many more records are committed; fails with the end of the logs."""
        target = len(self.tail.records) + records
        return await until(
            lambda: len(self.tail.records) >= target,
            within_s,
            lambda: "\n".join(
                [f"{records} more records [seed {self._seed}]", *(w.tail() for w in workers)]
            ),
        )

    def shaken(self) -> None:
        """Note that now something happens after which calls may come again."""
        self.crashes_ms.append(time.time_ns() // 1_000_000)

    async def drained(self, within_s: float, *workers: WorkerProcess) -> float:
        """Wait until everything sent is done and its offsets are committed; seconds it took."""

        def why() -> str:
            missing = [o.order_id for o in self.sent if not is_complete([o], self.tail.records)]
            logs = "\n".join(worker.tail() for worker in workers)
            return f"everything done [seed {self._seed}]; missing {missing}\n{logs}"

        async def is_done() -> bool:
            return is_complete(self.sent, self.tail.records) and not await self.shop.lag()

        return await until(is_done, within_s, why)

    async def verdict(self, workers: Iterable[WorkerProcess] = ()) -> None:
        """Fail with everything that is wrong."""
        await self.tail.to_end()
        control = self.shop.provider.control
        crashes_ms = [time_ms for worker in workers for time_ms in worker.crashes_ms]
        crashes_ms = sorted([*crashes_ms, *self.crashes_ms])
        wrong = judge(self.sent, self.tail.records, control.ledger(), control.calls(), crashes_ms)
        assert not wrong, f"seed {self._seed}: {len(wrong)} wrong\n" + "\n".join(wrong[:40])


@asynccontextmanager
async def campaign(
    broker: Broker,
    folder: Path,
    seed: int,
    orders: list[Order],
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Campaign]:
    """A shop with these orders scripted, none sent and no worker started yet."""
    with Nest(folder) as nest:
        everything = {**SETTINGS, **(settings or {})}
        async with Shop(broker, folder, everything, partitions=PARTITIONS, nest=nest) as shop:
            shop.provider.control.script_all([script for o in orders for script in o.scripts])
            async with Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
                yield Campaign(shop, orders, tail, seed)
