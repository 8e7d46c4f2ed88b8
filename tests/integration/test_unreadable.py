"""A record that the client library cannot read holds up its partition, and nothing else."""

from __future__ import annotations

import asyncio
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


async def send_unreadable(broker: Broker, partition: int) -> None:
    """Send what aiokafka cannot read back; its fast builder would refuse to write it."""
    async with AIOKafkaProducer(bootstrap_servers=broker.url.removeprefix("kafka://")) as producer:
        await producer.partitions_for(ORDERS)
        batch = producer.create_batch()
        batch._builder = _DefaultRecordBatchBuilderPy(2, 0, 0, -1, -1, 0, 10_000)
        batch.append(timestamp=None, key=b"x", value=b"{}", headers=[(NotText("x"), b"1")])
        await (await producer.send_batch(batch, ORDERS, partition=partition))


@pytest.mark.kafka
def test_a_header_name_that_is_no_text_holds_up_its_partition_and_no_other(
    start_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    """Orders before it and in other partitions are charged, and the worker says what to do."""
    asyncio.run(_meet_unreadable(start_broker("kafka"), tmp_path))


async def _meet_unreadable(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, {}) as shop, Tail(shop, [PAYMENTS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        before, behind, beside = (shop.key_in(n, "order") for n in (3, 3, 4))
        await shop.send(before, placed(before), f"{before}/1")
        await send_unreadable(broker, 3)
        await shop.send(behind, placed(behind), f"{behind}/1")
        await until(lambda: "cannot be read" in worker.text(), 30, worker.tail)
        await shop.send(beside, placed(beside), f"{beside}/1")
        await tail.until(PAYMENTS, 2, 30, before, beside)
        assert not tail.of(PAYMENTS, behind)
        assert f"{ORDERS} [[3]] @" in worker.text()
        assert await worker.stop() == 0
