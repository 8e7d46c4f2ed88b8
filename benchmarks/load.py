"""The messages of a run: made from a seed, written to a topic as often as a contestant needs."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from benchmarks.engine.contest import MESSAGE_ID

# As large as the broker's default limit of 1 MiB allows: filling is not what is measured.
BATCH_BYTES = 900_000

Sent = dict[str, float]  # message id -> monotonic time, in seconds


@dataclass(frozen=True, slots=True)
class Message:
    """One record of the source topic."""

    message_id: str
    account: str
    amount: int
    partition: int


@dataclass(frozen=True, slots=True)
class Load:
    """The same size and seed give the same messages, in the same order, on every machine.

    Attributes:
        messages: how many, at least 1.
        keys: how many accounts they fall on, evenly and at random.
        partitions: of the source topic; an account has one partition (murmur2, as everywhere).
        seed: of the random choice of accounts and amounts.
        padding_bytes: further bytes of a record's value.
        is_in_turn: accounts come one after the other instead of at random, so that as many
            messages as keys give each account one.
    """

    messages: int
    keys: int
    partitions: int
    seed: int
    padding_bytes: int = 0
    is_in_turn: bool = False

    def __iter__(self) -> Iterator[Message]:
        """Every message, in the order in which it is written."""
        chance = random.Random(self.seed)
        accounts = [account_name(number) for number in range(self.keys)]
        for number in range(self.messages):
            account = accounts[number % self.keys] if self.is_in_turn else chance.choice(accounts)
            amount = chance.randint(1, 99)
            yield Message(
                f"m-{number:08d}", account, amount, partition_of(account, self.partitions)
            )


def account_name(number: int) -> str:
    """Name of an account; also its key."""
    return f"account-{number:06d}"


def account_number(account: str) -> int:
    """The number in an account's name."""
    return int(account.removeprefix("account-"))


@lru_cache(1 << 20)
def partition_of(account: str, partitions: int) -> int:
    """Where Kafka's default partitioner puts an account; aiokafka's is pure Python."""
    return int(murmur2(account.encode()) & 0x7FFFFFFF) % partitions


def record_of(
    message: Message,
    padding_bytes: int = 0,
    id_prefix: str = "",
    more: Mapping[str, int] = MappingProxyType({}),
) -> tuple[bytes, bytes, list[tuple[str, bytes]]]:
    """Key, value and headers as they are written."""
    value: dict[str, str | int] = {
        "type": "Deposited",
        "account": message.account,
        "amount": message.amount,
        **more,
    }
    if padding_bytes:
        value["padding"] = "x" * padding_bytes
    return (
        message.account.encode(),
        orjson.dumps(value),
        [(MESSAGE_ID, f"{id_prefix}{message.message_id}".encode())],
    )


def _nothing_more(message: Message) -> Mapping[str, int]:
    return {}


class Filler:
    """Writes one load into topic after topic, from batches that are built once."""

    def __init__(
        self,
        servers: str,
        load: Load,
        id_prefix: str = "",
        more: Callable[[Message], Mapping[str, int]] = _nothing_more,
    ) -> None:
        """Make the filler; the batches are built at the start.

        Args:
            servers: of the broker.
            load: to write.
            id_prefix: of each message id.
            more: message -> further fields of its value.
        """
        self._load = load
        self._id_prefix = id_prefix
        self._more = more
        # Not idempotent: no producer id is stamped into a batch, so it can be sent again.
        self._producer = AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=False, max_batch_size=BATCH_BYTES
        )
        self._batches: list[tuple[int, BatchBuilder]] = []

    async def start(self) -> None:
        await self._producer.start()
        opened: dict[int, BatchBuilder] = {}
        for message in self._load:
            key, value, headers = record_of(
                message, self._load.padding_bytes, self._id_prefix, self._more(message)
            )
            builder = opened.get(message.partition)
            if builder is None or not builder.append(
                timestamp=None, key=key, value=value, headers=headers
            ):
                builder = opened[message.partition] = self._producer.create_batch()
                self._batches.append((message.partition, builder))
                builder.append(timestamp=None, key=key, value=value, headers=headers)
        for builder in opened.values():
            builder.close()

    async def fill(self, topic: str) -> None:
        """Write all messages; returns once the broker has acknowledged them."""
        sent = defaultdict(list)
        for partition, builder in self._batches:
            sent[partition].append(
                await self._producer.send_batch(builder, topic, partition=partition)
            )
        for futures in sent.values():
            for future in futures:
                await future

    async def trickle(self, topic: str, messages: Iterable[Message], pause_s: float) -> Sent:
        """Write one message every `pause_s`, each as soon as it is due."""
        sent: Sent = {}
        due_s = time.monotonic()
        for message in messages:
            if (wait_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            due_s += pause_s
            key, value, headers = record_of(message)
            sent[message.message_id] = time.monotonic()
            await self._producer.send(
                topic, value, key=key, partition=message.partition, headers=headers
            )
        return sent

    async def stop(self) -> None:
        await self._producer.stop()
