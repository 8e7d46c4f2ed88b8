"""Kills by the hundred over several workers and one broker, with a bad network."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import campaign
from tests.chaos.load import draw
from tests.chaos.proxy import Link, Proxied
from tests.chaos.storm import Storm

#: size -> kills; `--kills N` chooses any other number
KILLS = {"small": 6, "full": 1_000}
# After so many kills everything may drain and is judged.
KILLS_PER_ROUND = 50
KILLS_PER_BROKER_KILL = KILLS_PER_ROUND
ORDERS_PER_KILL = 8
DRAINS_WITHIN_S = 300.0
# A killed broker comes back once its session with its own controller is over.
BROKER = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(14_400)
def test_kills_of_workers_and_broker_with_a_bad_network_lose_repeat_and_reorder_nothing(
    start_proxied: Callable[[Mapping[str, str]], Proxied],
    lasting: Proxied,
    links: list[Link],
    pytestconfig: pytest.Config,
    tmp_path: Path,
    chaos_size: str,
    seed: int,
) -> None:
    """Goal: no combination of deaths and faults does what none of them does alone.

    Method: three workers, each behind a proxy, are killed at steps of commits, of openings and
    at random moments, a third of the time with their disk. Their connections are held, slowed
    down and cut meanwhile, and once in fifty kills the broker dies. As often all faults
    stop, everything has to drain and is judged from outside.
    """
    kills = pytestconfig.getoption("--kills") or KILLS[chaos_size]
    if kills < KILLS_PER_BROKER_KILL // 2:  # so few leave the broker alone, and it may be anybody's
        asyncio.run(_storm(lasting.broker, links, tmp_path, seed, kills))
    else:
        proxied = start_proxied(BROKER)
        asyncio.run(_storm(proxied.broker, proxied.links, tmp_path, seed, kills))


async def _storm(broker: Broker, links: list[Link], folder: Path, seed: int, kills: int) -> None:
    source = random.Random(seed)
    everything = draw(seed, ORDERS_PER_KILL * kills, f"s{seed}")
    started = time.monotonic()
    async with campaign(broker, folder, seed, everything) as orders:
        workers = [orders.shop.worker(f"w{n}", link=link) for n, link in enumerate(links)]
        storm = Storm(orders, broker, workers, links, source, KILLS_PER_BROKER_KILL)
        while (left := kills - storm.killed.total()) > 0:
            await storm.blow(min(left, KILLS_PER_ROUND))
            for worker in workers:
                worker.start()
            for worker in workers:
                await worker.is_up()  # it takes signals from now on
            await orders.drained(DRAINS_WITHIN_S, *workers)
            for worker in workers:
                assert await worker.stop(30) == 0
            await orders.verdict(workers)
            took_s = time.monotonic() - started
            told = f"{storm.killed.total()} kills in {took_s:.0f} s, {len(orders.sent)} orders"
            print(f"seed {seed}: {told}: {dict(sorted(storm.killed.items()))}", flush=True)
