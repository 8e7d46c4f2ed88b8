"""Records that the client library cannot read: what can be read all the same is, and in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from bookstore_streams.testing.brokers import Broker
from tests.chaos.shop import ORDERS, PAYMENTS, Shop, Tail, placed, until


class NotText(str):
    """A header name that goes onto the wire as bytes which are no UTF-8."""

    __slots__ = ()

    def encode(self, *args: object, **kwargs: object) -> bytes:
        return b"\xff\xfe"


async def send_unreadable(broker: Broker, partition: int, *orders: str) -> None:
    """Send one batch with an odd name at the second record.

    aiokafka's fast builder would refuse to write it.
    """
    async with AIOKafkaProducer(bootstrap_servers=broker.url.removeprefix("kafka://")) as producer:
        await producer.partitions_for(ORDERS)
        batch = producer.create_batch()
        batch._builder = _DefaultRecordBatchBuilderPy(2, 0, 0, -1, -1, 0, 100_000)
        for n, order in enumerate(orders):
            headers = [("message-id", f"{order}/1".encode())]
            if n == 1:
                headers.append((NotText("x"), b"1"))
            value = json.dumps(placed(order)).encode()
            batch.append(timestamp=None, key=order.encode(), value=value, headers=headers)
        await (await producer.send_batch(batch, ORDERS, partition=partition))


@pytest.mark.kafka
def test_a_header_name_that_is_no_text_holds_nothing_up_and_loses_nothing(
    start_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    """Records before and behind it came in the same batch: all are charged, none is passed over."""
    asyncio.run(_meet_unreadable(start_broker("kafka"), tmp_path))


async def _meet_unreadable(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, {}) as shop, Tail(shop, [PAYMENTS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        before, within, odd, after, last = (shop.key_in(3, "order") for _ in range(5))
        beside = shop.key_in(4, "order")
        await shop.send(before, placed(before), f"{before}/1")
        await send_unreadable(broker, 3, within, odd, after)
        await shop.send(last, placed(last), f"{last}/1")
        await shop.send(beside, placed(beside), f"{beside}/1")
        orders = (before, within, odd, after, last, beside)
        await tail.until(PAYMENTS, len(orders), 30, *orders)
        assert {record.key for record in tail.of(PAYMENTS, *orders)} == set(orders)
        assert "names are no UTF-8" in worker.text()
        await until(shop.has_no_lag, 10, worker.tail)
        assert await worker.stop() == 0
