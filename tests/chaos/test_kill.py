"""kill -9 of the worker, at random moments and at each step of a commit, with and without disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import Campaign, campaign
from tests.chaos.load import draw
from tests.chaos.shop import WorkerProcess, until

STEPS = ("before-transaction", "after-sends", "after-commit", "after-store")
# "working" is a random moment after the first commit, "starting" any moment after the start.
MOMENTS = (*STEPS, "working", "starting")
#: size -> (orders, kills)
SIZES = {"small": (300, 12), "full": (2_000, 100)}
# The group notices a killed worker after 6 s; the rest is for a busy machine.
WORKS_WITHIN_S = 180.0
COUNT_MAX = 8


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(3_600)
def test_a_worker_killed_again_and_again_charges_every_order_once_and_in_order(
    calm_kafka: Broker, tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """Goal: no moment of dying loses, repeats or reorders anything, with the disk or without.

    Method: one worker handles scripted orders and is killed at each step of a commit and at
    random moments, each followed by a restart on the same disk and on an empty one. Orders
    arrive all the while. Then it may finish, and everything is judged from outside.
    """
    count, kills = SIZES[chaos_size]
    asyncio.run(_kill(calm_kafka, tmp_path, seed, count, kills))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_a_worker_killed_on_the_embedded_broker_charges_every_order_once_and_in_order(
    start_broker: Callable[[str], Broker], tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """The embedded broker keeps a killed member in its group, so it restarts with each worker."""
    kills = 6 if chaos_size == "small" else 24
    asyncio.run(_kill(start_broker("embedded"), tmp_path, seed, 20 * kills, kills))


async def _kill(broker: Broker, folder: Path, seed: int, count: int, kills: int) -> None:
    source = random.Random(seed)
    async with campaign(broker, folder, seed, draw(seed, count, f"k{seed}")) as orders:
        worker = orders.shop.worker()
        for moment, is_wiped in _schedule(source, kills):
            await _die(orders, worker, moment, source, count // kills)
            if is_wiped:
                worker.wipe()
            if broker.kind == "embedded":
                broker.restart()
        await orders.feed()
        worker.start()
        await orders.drained(180, worker)
        assert await worker.stop() == 0
        await orders.verdict([worker])


def _schedule(source: random.Random, kills: int) -> list[tuple[str, bool]]:
    """Every moment with the disk and without, as often as there is room for, shuffled."""
    every = cycle(product(MOMENTS, (False, True)))
    schedule = [next(every) for _ in range(kills)]
    source.shuffle(schedule)
    return schedule


async def _die(
    orders: Campaign, worker: WorkerProcess, moment: str, source: random.Random, portion: int
) -> None:
    """One life of the worker: it starts, orders arrive before and while it works, it is killed."""
    early = portion // 2
    worker.start(
        at=(moment, source.randint(1, COUNT_MAX)) if moment in STEPS else None, is_traced=True
    )
    await orders.feed(early)
    if moment == "starting":
        await asyncio.sleep(source.uniform(0, 9))
        await orders.feed(portion - early)
    else:
        await until(
            lambda: worker.commits() > 0 or not worker.is_running(), WORKS_WITHIN_S, worker.tail
        )
        await orders.feed(portion - early)
        if moment == "working":
            await asyncio.sleep(source.uniform(0, 1.5))
        else:
            await worker.ended(WORKS_WITHIN_S)
    worker.kill()
