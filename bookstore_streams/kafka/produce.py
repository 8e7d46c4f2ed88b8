"""Sends one record, with every guarantee that a producer alone can have."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaProducer

from bookstore_streams.errors import BookstoreError, PublishUnconfirmedError
from bookstore_streams.settings.area import BrokerSettings

from .connection import client_options
from .lookup import SILENCE_S_MAX, no_answer, partitions_of, stopped


async def send(
    topic: str,
    key: bytes,
    value: bytes,
    headers: list[tuple[str, bytes]],
    broker: BrokerSettings,
) -> tuple[int, int]:
    """Send a record by Kafka's default partitioner, and wait until all replicas in sync have it.

    Returns:
        Its partition and offset.

    Raises:
        ConnectionLostError: no broker answers; nothing was sent.
        PublishUnconfirmedError: it may have been kept or not.
        TransportError: the topic is missing, or the broker refuses; nothing was kept.
    """
    await partitions_of([topic], broker)
    producer = AIOKafkaProducer(**client_options(broker), acks="all", enable_idempotence=True)
    is_sent = False
    try:
        async with asyncio.timeout(SILENCE_S_MAX):
            await producer.start()
            sending = await producer.send(topic, value, key, headers=headers)
            is_sent = True
            done = await sending
    except BookstoreError:
        raise
    except Exception as error:
        if is_sent and isinstance(error, TimeoutError):
            raise PublishUnconfirmedError(
                f"The broker did not confirm the message within {SILENCE_S_MAX:g} s; it may have "
                "kept it. Send it again under the same message id: it takes effect once."
            ) from error
        raise no_answer(error, broker) from error
    finally:
        await stopped(producer.stop())
    return done.partition, done.offset
