"""Workers that join, leave politely and are killed while orders keep coming."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import campaign
from tests.chaos.load import draw, healthy
from tests.chaos.shop import WorkerProcess

#: size -> (orders, changes of membership)
SIZES = {"small": (240, 8), "full": (1_200, 40)}
# Bounds are for a busy machine; nothing here is about how long it takes.
LEAVES_WITHIN_S = 60.0
GOES_ON_WITHIN_S = 180.0


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_800)
def test_workers_that_come_and_go_charge_every_order_once_and_in_order(
    calm_kafka: Broker, tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """Goal: partitions change hands, politely and not, without loss, repetition or reordering.

    Method: two workers share the group. At each change one that is away joins, or one of two
    leaves by SIGTERM or SIGKILL, with its disk kept or lost. Orders arrive before each change.
    """
    count, changes = SIZES[chaos_size]
    asyncio.run(_come_and_go(calm_kafka, tmp_path, seed, count, changes))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_polite_rebalances_repeat_no_call_that_was_answered(
    calm_kafka: Broker, tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """Goal: only a crash may repeat a call: who leaves in order settles what is in flight first.

    Method: nobody is killed. A call that the provider answered with success is not made again.
    """
    changes = 6 if chaos_size == "small" else 30
    asyncio.run(_only_politely(calm_kafka, tmp_path, seed, 40 * changes, changes))


async def _come_and_go(broker: Broker, folder: Path, seed: int, count: int, changes: int) -> None:
    source = random.Random(seed)
    async with campaign(broker, folder, seed, draw(seed, count, f"r{seed}")) as orders:
        workers = [orders.shop.worker("a"), orders.shop.worker("b")]
        workers[0].start()
        for _ in range(changes):
            await orders.feed(count // (changes + 1))
            await orders.progress(5, GOES_ON_WITHIN_S, *workers)
            await _change(workers, source)
        await orders.feed()
        for worker in workers:
            if not worker.is_running():
                worker.start()
            await worker.is_up()  # it takes signals from now on
        await orders.drained(GOES_ON_WITHIN_S, *workers)
        for worker in workers:
            assert await worker.stop(LEAVES_WITHIN_S) == 0
        await orders.verdict(workers)


async def _change(workers: list[WorkerProcess], source: random.Random) -> None:
    """One joins or one leaves, so that at least one stays."""
    away = [worker for worker in workers if not worker.is_running()]
    if away:
        if source.random() < 0.4:
            away[0].wipe()
        away[0].start()
        await away[0].is_up()
        return
    leaving = source.choice(workers)
    if source.random() < 0.5:
        assert await leaving.stop(LEAVES_WITHIN_S) == 0
    else:
        leaving.kill()


async def _only_politely(broker: Broker, folder: Path, seed: int, count: int, changes: int) -> None:
    # Handlers are slow enough that each change meets some in flight, and no call times out. Nobody
    # is killed, and a busy machine must not cost a session, which is a crash to the group.
    settings = {
        "BOOKSTORE_PAYMENT_TIMEOUT_MS": "10000",
        "BOOKSTORE_BROKER_SESSION_TIMEOUT_MS": "30000",
    }
    async with campaign(broker, folder, seed, healthy(count, f"p{seed}"), settings) as orders:
        control = orders.shop.provider.control
        control.default(delay_ms=150)
        stays, comes = orders.shop.worker("stays"), orders.shop.worker("comes")
        stays.start()
        for change in range(changes):
            await orders.feed(count // changes)
            await orders.progress(count // changes // 2, GOES_ON_WITHIN_S, stays, comes)
            if change % 2:
                assert await comes.stop(LEAVES_WITHIN_S) == 0
            else:
                comes.start()
                await comes.is_up()
        await orders.drained(GOES_ON_WITHIN_S, stays, comes)
        assert await stays.stop(LEAVES_WITHIN_S) == 0
        if comes.is_running():
            assert await comes.stop(LEAVES_WITHIN_S) == 0
        await orders.verdict()
        replayed = [call for call in control.calls() if call["result"] == "replayed"]
        assert not replayed, f"seed {seed}: {len(replayed)} calls were made again: {replayed[:5]}"
