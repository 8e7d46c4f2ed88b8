"""A worker whose broker is gone still does what it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.shop import Shop

# The contract's `shutdown.ms`, by default.
SHUTDOWN_S = 10


@pytest.mark.kafka
def test_a_worker_without_a_broker_leaves_in_time_when_it_is_told_to(
    start_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    asyncio.run(_stop_without_broker(start_broker("kafka"), tmp_path))


async def _stop_without_broker(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, {}) as shop:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        broker.kill()
        started = time.monotonic()
        assert await worker.stop(within_s=60) == 0
        assert time.monotonic() - started < SHUTDOWN_S
