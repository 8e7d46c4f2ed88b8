"""The broker freezes or dies under load and comes back on the same data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import Campaign, campaign
from tests.chaos.load import draw
from tests.chaos.shop import WorkerProcess, until

#: size -> (orders, times that the broker freezes or dies)
SIZES = {"small": (120, 2), "full": (600, 10)}
# Seconds, one after another: within the group's session of 6 s and, at last, beyond it. The
# broker's own session with its controller is 9 s.
FREEZES_S = (3, 7, 1, 4, 2)
SESSION_S = 6
# A provider that takes its time keeps handlers in flight while nothing is being committed.
SETTINGS = {"BOOKSTORE_PAYMENT_TIMEOUT_MS": "3000"}
SLOW_MS = 1_200
QUIET_S = 0.25


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_800)
def test_a_broker_frozen_under_load_costs_time_and_nothing_else(
    start_broker: Callable[[str], Broker], tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """Goal: requests that hang for seconds, commits among them, end as they would have anyway.

    Method: short freezes change nothing at all. A longer one costs the worker its place in the
    group, and what it had not committed is done again, as after a crash.
    """
    count, times = SIZES[chaos_size]
    asyncio.run(_freeze(start_broker("kafka"), tmp_path, seed, count, times))


async def _freeze(broker: Broker, folder: Path, seed: int, count: int, times: int) -> None:
    async with campaign(broker, folder, seed, draw(seed, count, f"f{seed}")) as orders:
        worker = orders.shop.worker()
        worker.start()
        thaws: list[tuple[int, int]] = []
        for freeze in range(times):
            await orders.feed(count // (times + 1))
            await orders.progress(5, 180, worker)
            frozen_s = FREEZES_S[freeze % len(FREEZES_S)]
            opened = openings(worker)
            broker.pause()
            await asyncio.sleep(frozen_s)
            broker.resume()
            # On a busy machine a short freeze may cost the session, too. Then it shows.
            thaws.append((time.time_ns() // 1_000_000, 0 if frozen_s > SESSION_S else opened))
        await orders.feed()
        await orders.drained(180, worker)
        opened = openings(worker)
        worker.crashes_ms += [thaw_ms for thaw_ms, before in thaws if opened > before]
        assert await worker.stop() == 0
        await orders.verdict([worker])


def openings(worker: WorkerProcess) -> int:
    """How often it opened a partition: again only after it had to let go of one."""
    return worker.text().count(": open after ")


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_800)
def test_a_broker_killed_with_calls_in_flight_costs_time_and_nothing_else(
    start_broker: Callable[[str], Broker], tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """Goal: workers outlive their broker, and what they could not commit is done again.

    Method: the broker dies while calls are in flight, which end with nobody to tell, and is
    started again seconds later. The worker is not touched. No transaction is being decided at
    that moment, for Kafka 4.4.0 was seen to tear one apart then (a coordinator that starts
    before its partitions have leaders skips their commit markers), and no client can mend that.
    """
    count, times = SIZES[chaos_size]
    asyncio.run(_kill(start_broker("kafka"), tmp_path, seed, count, times))


async def _kill(broker: Broker, folder: Path, seed: int, count: int, times: int) -> None:
    everything = draw(seed, count, f"b{seed}")
    async with campaign(broker, folder, seed, everything, SETTINGS) as orders:
        orders.shop.provider.control.default(delay_ms=SLOW_MS)
        worker = orders.shop.worker()
        worker.start(is_traced=True)
        for kill in range(times):
            await _be_busy_and_quiet(orders, worker, count // (times + 1))
            worker.crashes_ms.append(time.time_ns() // 1_000_000)
            broker.kill()
            await asyncio.sleep(2 + kill % 4)
            broker.start()
            worker.crashes_ms.append(time.time_ns() // 1_000_000)
        await orders.feed()
        await orders.drained(180, worker)
        assert await worker.stop() == 0
        await orders.verdict([worker])


async def _be_busy_and_quiet(orders: Campaign, worker: WorkerProcess, portion: int) -> None:
    """Feed; return when calls are in flight and no commit has begun for a while."""
    control = orders.shop.provider.control
    before = len(control.calls())
    await orders.feed(portion)
    await until(lambda: len(control.calls()) >= before + portion // 3, 180, worker.tail)
    commits, since = worker.commits(), time.monotonic()

    def is_quiet() -> bool:
        nonlocal commits, since
        if worker.commits() != commits:
            commits, since = worker.commits(), time.monotonic()
        in_flight = any(call["result"] == "pending" for call in control.calls(before))
        return in_flight and time.monotonic() - since > QUIET_S

    await until(is_quiet, 180, lambda: f"a quiet moment\n{worker.tail()}")
