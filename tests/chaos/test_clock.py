"""The wall clock of a worker is set forward and back by hours, under load and over its death."""

from __future__ import annotations

import asyncio
import random
import struct
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import DONE, campaign
from tests.chaos.load import draw

#: size -> (orders, jumps)
SIZES = {"small": (150, 8), "full": (1_500, 80)}
HOUR_NS = 3_600 * 1_000_000_000
# Kafka takes no record that is more than an hour ahead of its own clock.
AHEAD_H_MAX = 0.9
LATEST_H = 0.95
BEHIND_H_MAX = 30.0
WITHIN_S = 180.0


class WallClock:
    """How far the clock of a worker is ahead, as it stands in a file that the worker maps."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.set(0.0)

    def set(self, hours: float) -> None:
        """Set it, at once; negative hours are behind."""
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("=q", int(hours * HOUR_NS)))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(3_600)
def test_a_clock_that_jumps_by_hours_costs_time_and_nothing_else(
    calm_kafka: Broker, tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """Goal: what is promised hangs on no wall clock; only when retries come does.

    Method: while orders are handled, parked and retried, the worker's clock jumps to a drawn
    distance from the true time, up to an hour ahead and thirty behind; now and then the worker
    is killed and starts again at that time. New orders go on all the while. At last the clock
    stands later than ever before: what was parked until then becomes due.

    Further ahead than an hour a worker can only park: Kafka takes no event from it, and what it
    parks waits for that hour when the clock is right again (docs/guarantees.md).
    """
    count, jumps = SIZES[chaos_size]
    asyncio.run(_jump(calm_kafka, tmp_path, seed, count, jumps))


async def _jump(broker: Broker, folder: Path, seed: int, count: int, jumps: int) -> None:
    source = random.Random(seed)
    clock = WallClock(folder / "clock")
    async with campaign(broker, folder, seed, draw(seed, count, f"t{seed}")) as orders:
        worker = orders.shop.worker(env={"CHAOS_CLOCK": str(clock.file)})
        worker.start()
        for jump in range(jumps):
            await orders.feed(count // (jumps + 2))
            await orders.progress(5, WITHIN_S, worker)
            clock.set(_hours(source))
            DONE["times that a clock was set"] += 1
            if jump % 4 == 3:
                worker.kill()
                worker.start()
        clock.set(LATEST_H)
        await orders.feed()
        await orders.drained(WITHIN_S, worker)
        assert await worker.stop() == 0
        await orders.verdict([worker])
        assert not worker.tracebacks()


def _hours(source: random.Random) -> float:
    ahead = source.random() < 0.5
    return source.uniform(0.0, AHEAD_H_MAX) if ahead else -source.uniform(0.0, BEHIND_H_MAX)
