"""The broker dies under load and comes back on the same data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import campaign
from tests.chaos.load import draw

#: size -> (orders, kills of the broker)
SIZES = {"small": (120, 2), "full": (600, 10)}


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_800)
def test_a_broker_killed_under_load_costs_time_and_nothing_else(
    start_broker: Callable[[str], Broker], tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """Goal: workers outlive their broker, and what was in doubt is settled rightly.

    Method: the broker is killed with transactions under way and started again seconds later.
    The worker is not touched.
    """
    count, kills = SIZES[chaos_size]
    asyncio.run(_kill_broker(start_broker("kafka"), tmp_path, seed, count, kills))


async def _kill_broker(broker: Broker, folder: Path, seed: int, count: int, kills: int) -> None:
    async with campaign(broker, folder, seed, draw(seed, count, f"b{seed}")) as orders:
        worker = orders.shop.worker()
        worker.start()
        for kill in range(kills):
            await orders.feed(count // (kills + 1))
            await orders.progress(10, 90, worker)
            broker.kill()
            await asyncio.sleep(2 + kill % 4)
            broker.start()
        await orders.feed()
        await orders.drained(180, worker)
        assert await worker.stop() == 0
        # Answers that were lost with the broker may have been asked for again.
        await orders.verdict([worker])
