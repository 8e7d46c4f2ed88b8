"""A worker that is frozen for longer than its session and wakes up as if nothing had happened."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import Campaign, campaign
from tests.chaos.load import ATTEMPTS_MAX, draw
from tests.chaos.shop import WorkerProcess, until

# For a busy machine; how soon keys go on elsewhere is looked at in tests/integration.
GOES_ON_WITHIN_S = 180.0
PORTION = 40


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("step", ["before-transaction", "after-sends", "after-commit", "anywhere"])
def test_a_frozen_worker_that_wakes_up_writes_nothing_and_works_on(
    calm_kafka: Broker, tmp_path: Path, step: str, seed: int
) -> None:
    """Goal: what a worker was about to do when it lost its partitions never happens.

    Method: of two workers one freezes by SIGSTOP, at a step of a commit or anywhere. The other
    takes over and finishes everything. The first wakes up, with timers of parked keys long
    due, and must neither write nor call; then it rejoins, and alone it handles the rest.
    """
    asyncio.run(_freeze(calm_kafka, tmp_path, seed, step))


async def _freeze(broker: Broker, folder: Path, seed: int, step: str) -> None:
    everything = draw(seed, 4 * PORTION, f"z{seed}")
    async with campaign(broker, folder, seed, everything) as orders:
        frozen, other = orders.shop.worker("frozen"), orders.shop.worker("other")
        control = orders.shop.provider.control
        other.start()
        await orders.feed(PORTION // 2)
        await orders.progress(5, GOES_ON_WITHIN_S, other)
        await _freeze_at(orders, frozen, step)
        frozen.crashes_ms.append(time.time_ns() // 1_000_000)
        left = len(orders.sent)
        await orders.drained(GOES_ON_WITHIN_S, other)
        asleep = control.calls()

        woken_ms = time.time_ns() // 1_000_000
        frozen.send(signal.SIGCONT)
        await orders.feed(PORTION // 2)
        await orders.drained(GOES_ON_WITHIN_S, frozen, other)
        done = {order.order_id for order in orders.orders[:left]}
        woken = [c for c in control.calls(asleep[-1]["seq"]) if c["order_id"] in done]
        shown = [
            [(c["at_ms"] - woken_ms, c["operation"], c["result"]) for c in calls]
            for calls in [await orders.shop.calls(c["order_id"]) for c in woken]
        ]
        assert not woken, f"seed {seed}: called for orders that the other one had done: {shown}"

        assert await other.stop() == 0
        await orders.feed()
        await orders.drained(GOES_ON_WITHIN_S, frozen)
        assert await frozen.stop() == 0
        await orders.verdict([frozen])
        _judge_attempts(orders)


async def _freeze_at(orders: Campaign, frozen: WorkerProcess, step: str) -> None:
    """Feed until the worker has partitions and stands still at that step of a commit."""
    commits = 5
    at = None if step == "anywhere" else (step, commits)
    frozen.start(at=at, then=signal.SIGSTOP, is_traced=True)
    await frozen.is_up()
    for order in range(2 * PORTION):
        if frozen.commits() >= commits:
            break
        await orders.feed(1)
        await asyncio.sleep(0.5 if order < PORTION else 2.0)
    if step == "anywhere":
        frozen.send(signal.SIGSTOP)
    await until(frozen.is_stopped, GOES_ON_WITHIN_S, frozen.tail)


def _judge_attempts(orders: Campaign) -> None:
    """A message that never succeeds is called as often as it may, once more after the freeze."""
    calls = Counter(
        (call["order_id"], call["operation"]) for call in orders.shop.provider.control.calls()
    )
    for order in orders.sent:
        for message_id, reason, _ in order.letters:
            if reason == "attempts-exhausted":
                operation = "charge" if message_id.endswith("placed") else "refund"
                made = calls[order.order_id, operation]
                assert ATTEMPTS_MAX <= made <= ATTEMPTS_MAX + 1, (order.order_id, operation, made)
