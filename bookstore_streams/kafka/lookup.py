"""Asks a broker which topics there are, for commands that run without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient

from bookstore_streams.errors import BookstoreError, ConnectionLostError, TransportError
from bookstore_streams.settings.area import BrokerSettings

from .connection import client_options, translated

# Longest silence of a broker before a command gives up, in seconds. Two such waits, one for
# the topics and one for their records, still end within half a minute.
SILENCE_S_MAX = 12.0
# A client that lost its broker may hang in its own stop.
STOP_S_MAX = 1.0


async def partitions_of(names: Iterable[str], broker: BrokerSettings) -> dict[str, list[int]]:
    """Topic -> numbers of its partitions; makes no topic, whatever the broker would do by itself.

    Raises:
        ConnectionLostError: no broker answers.
        TransportError: a topic is missing, or the broker refuses.
    """
    wanted = list(names)
    admin = AIOKafkaAdminClient(**client_options(broker))
    try:
        async with asyncio.timeout(SILENCE_S_MAX):
            await admin.start()
            present = set(await admin.list_topics())
            missing = [name for name in wanted if name not in present]
            if missing:
                raise TransportError(
                    f"There is no topic {missing[0]} at {', '.join(broker.servers)}. The first "
                    "worker makes the topics: start one (faust -A bookstore_streams worker)."
                )
            found = await admin.describe_topics(wanted)
    except BookstoreError:
        raise
    except Exception as error:
        raise no_answer(error, broker) from error
    finally:
        await stopped(admin.close())
    return {
        topic["topic"]: sorted(each["partition"] for each in topic["partitions"]) for topic in found
    }


def no_answer(error: Exception, broker: BrokerSettings) -> TransportError:
    """Our error when a command's client could not do its work."""
    servers = ", ".join(broker.servers)
    if isinstance(error, TimeoutError):
        return ConnectionLostError(
            f"The Kafka broker at {servers} says nothing for {SILENCE_S_MAX:g} s. Look whether it "
            "runs, or set BOOKSTORE_BROKER_URL."
        )
    known = translated(error, f"asking {servers}")
    if isinstance(known, ConnectionLostError):
        return ConnectionLostError(
            f"No Kafka broker answers at {servers} ({type(error).__name__}). Start one, or set "
            "BOOKSTORE_BROKER_URL."
        )
    return known


async def stopped(stopping: Coroutine[Any, Any, None]) -> None:
    """Wait for a client's stop, but not for ever, and whatever comes of it."""
    task = asyncio.create_task(stopping)
    await asyncio.wait([task], timeout=STOP_S_MAX)
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.exception()
