"""A data directory without room: what a worker says, who goes on, and what becomes of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bookstore_streams.kafka.journal import partition_of
from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import DONE, PARTITIONS, Campaign, campaign
from tests.chaos.judge import is_complete
from tests.chaos.load import Order, draw
from tests.chaos.shop import WorkerProcess, until

#: size -> times that the disk is full
TIMES = {"small": 1, "full": 12}
DISK_BYTES = 24 << 20
# RocksDB sets room for its log aside, which has to be used up before anything is noticed.
NOTE_BYTES = 60_000
BACKLOG_MAX = 60
WITHIN_S = 180.0
FULL = "is full, so it cannot be"


class Disk:
    """A file system of its own in memory, of a size that is soon reached."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave no room at all."""
        with (self.path / "filler").open("ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"\0" * 4096)
            except OSError:
                pass

    def clear(self) -> None:
        """Give the room back."""
        (self.path / "filler").unlink()


@pytest.fixture
def make_disk() -> Iterator[Callable[[Path], Disk]]:
    """Mount a small tmpfs; where that is not allowed, skip on a laptop and fail in CI."""
    with ExitStack() as stack:

        def make(path: Path) -> Disk:
            path.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                why = f"a small disk needs root and `mount`: {getattr(error, 'stderr', error)}"
                if os.environ.get("CI") == "true":
                    pytest.fail(why, pytrace=False)
                pytest.skip(why)
            stack.callback(subprocess.run, ["umount", "-l", str(path)], check=True)
            return Disk(path)

        yield make


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(3_600)
def test_a_full_disk_stops_its_own_partitions_only_and_nothing_is_lost(
    calm_kafka: Broker,
    make_disk: Callable[[Path], Disk],
    tmp_path: Path,
    chaos_size: str,
    seed: int,
) -> None:
    """Goal: a disk without room costs time; it is said, others go on, and room mends it.

    Method: of two workers one has its data on a small disk, which is filled under load. Once it
    says so, the other worker's orders must be handled to the end. Then room is made: the worker
    goes on by itself. Every other time it is restarted while the disk is full.
    """
    disk = make_disk(tmp_path / "data-a")
    asyncio.run(_fill(calm_kafka, disk, tmp_path, seed, TIMES[chaos_size]))


async def _fill(broker: Broker, disk: Disk, folder: Path, seed: int, times: int) -> None:
    everything = [_noted(order) for order in draw(seed, 600 * times, f"d{seed}")]
    async with campaign(broker, folder, seed, everything) as orders:
        full, other = orders.shop.worker("a"), orders.shop.worker("b")
        for worker in (full, other):
            worker.start()
        for time in range(times):
            for worker in (full, other):
                await worker.is_ready()
            disk.fill()
            DONE["times that a disk was full"] += 1
            await _until_it_is_said(orders, full, other)
            # What is committed and not on its disk is read again: no call, but no promise that
            # a message under way is not called again either.
            orders.shaken()
            await _others_go_on(orders, full, other)
            if time % 2 == 0:
                assert await full.stop() == 0
                full.start()
                await full.is_up()
                await _until_it_is_said(orders, full, other)
            disk.clear()
            orders.shaken()
            await orders.drained(WITHIN_S, full, other)
        for worker in (full, other):
            assert await worker.stop() == 0
        await orders.verdict([full, other])
        assert not full.tracebacks()


async def _until_it_is_said(orders: Campaign, full: WorkerProcess, other: WorkerProcess) -> None:
    """Feed until the worker with the full disk is not ready, and names the disk as the cause."""

    async def is_said() -> bool:
        if orders.backlog() < BACKLOG_MAX:
            await orders.feed(4)
        return any(FULL in (seat["cause"] or "") for seat in await _seats(full))

    await until(is_said, WITHIN_S, lambda: f"{full.tail()}\n{other.tail()}")


async def _others_go_on(orders: Campaign, full: WorkerProcess, other: WorkerProcess) -> None:
    theirs = {seat["partition"] for seat in await _seats(full)}
    await orders.feed(20)
    mine = [o for o in orders.sent if partition_of(o.order_id.encode(), PARTITIONS) not in theirs]
    assert mine
    await until(lambda: is_complete(mine, orders.tail.records), WITHIN_S, other.tail)


async def _seats(worker: WorkerProcess) -> list[dict[str, Any]]:
    _, document = await asyncio.to_thread(worker.get, "/health/ready")
    seats: list[dict[str, Any]] = document["partitions"]
    return seats


def _noted(order: Order) -> Order:
    for message in order.messages:
        message.document["note"] = "x" * NOTE_BYTES
    return order
