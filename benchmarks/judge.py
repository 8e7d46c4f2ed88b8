"""Looks at a contestant from outside: how far it is, how fast it was, whether it was exact.

The judge reads committed offsets of the group and the output topic (read_committed), and
knows nothing of the contestant's inside.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import GroupCoordinatorNotAvailableError, GroupLoadInProgressError

from benchmarks.engine.contest import deposit
from benchmarks.load import Message

# Marking a commit takes milliseconds. A worker of very many partitions that is stopped under
# load may leave a transaction behind, which the broker aborts after half a minute.
SETTLE_S_MAX = 45.0

Offsets = dict[int, int]  # partition -> next offset
Event = tuple[str, int, int]  # message id, count, total


@dataclass(frozen=True, slots=True)
class Sight:
    """What was visible at a moment.

    Attributes:
        at_s: monotonic time.
        committed: offsets committed by the group.
        visible: end of what a read_committed reader of the output topic sees.
    """

    at_s: float
    committed: Offsets
    visible: Offsets


class Heard(NamedTuple):
    """One event as a reader of committed records got it.

    Attributes:
        message_id: of the message that it tells of.
        partition: of the output topic.
        at_s: monotonic time of reading it.
        told: what it says.
    """

    message_id: str
    partition: int
    at_s: float
    told: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Output:
    """The output topic, read to its end.

    Attributes:
        offsets: partition -> offsets of its events, ascending (control records left out).
        events: account -> its events in order.
    """

    offsets: dict[int, list[int]]
    events: dict[str, list[Event]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison of the output with the model.

    Attributes:
        missing: events of committed messages that are not there.
        surplus: events that came twice, or that no message of the load leads to.
        wrong: accounts whose events are not the beginning of the model's.
        ahead: right events of messages above the committed offset. No fault: a message that is
            done before an earlier one of another key is covered by its inbox row.
    """

    missing: int
    surplus: int
    wrong: int
    ahead: int

    @property
    def is_exact(self) -> bool:
        """Every committed message has had its effect, and every effect came once and in order."""
        return not (self.missing or self.surplus or self.wrong)


class JudgeError(Exception):
    """What a contestant left behind cannot be judged."""


class Judge:
    """One for a run; holds readers that belong to no group."""

    def __init__(self, servers: str) -> None:
        self._reader, self._uncommitted = (
            AIOKafkaConsumer(
                bootstrap_servers=servers,
                isolation_level=level,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            )
            for level in ("read_committed", "read_uncommitted")
        )
        self._admin = AIOKafkaAdminClient(bootstrap_servers=servers)

    async def start(self) -> None:
        await self._reader.start()
        await self._uncommitted.start()
        await self._admin.start()

    async def stop(self) -> None:
        await self._reader.stop()
        await self._uncommitted.stop()
        await self._admin.close()

    async def look(self, group: str, source: str, output: str, partitions: int) -> Sight:
        """One look, some milliseconds of the broker's time."""
        committed = await self.committed(group, source)
        return Sight(time.monotonic(), committed, await self.ends(output, partitions))

    async def committed(self, group: str, topic: str) -> Offsets:
        """Offsets that the group has committed, partitions without any left out."""
        try:
            found = await self._admin.list_consumer_group_offsets(group)
        except (GroupCoordinatorNotAvailableError, GroupLoadInProgressError):
            return {}  # the broker has not had a group yet
        return {
            tp.partition: place.offset
            for tp, place in found.items()
            if tp.topic == topic and place.offset > 0
        }

    async def ends(self, topic: str, partitions: int) -> Offsets:
        """Ends of the topic for a reader of committed records, empty partitions left out."""
        # Such a reader is told the last stable offset, not the high watermark.
        ends = await self._reader.end_offsets(_partitions(topic, partitions))
        return {tp.partition: end for tp, end in ends.items() if end}

    async def read(self, topic: str, partitions: int) -> Output:
        """The whole topic, once no transaction is open on it any more.

        Raises:
            JudgeError: a transaction stayed open.
        """
        reader, tps = self._reader, _partitions(topic, partitions)
        offsets: dict[int, list[int]] = defaultdict(list)
        events: dict[str, list[Event]] = defaultdict(list)
        # The broker answers a commit before it has marked it in every partition.
        deadline_s = time.monotonic() + SETTLE_S_MAX
        while (ends := await reader.end_offsets(tps)) != await self._uncommitted.end_offsets(tps):
            if time.monotonic() > deadline_s:
                raise JudgeError(f"a transaction on {topic} is open for {SETTLE_S_MAX:.0f} s")
            await asyncio.sleep(0.02)
        reader.assign(tps)
        await reader.seek_to_beginning(*tps)
        while any([await reader.position(tp) < ends[tp] for tp in tps]):
            for tp, records in (await reader.getmany(timeout_ms=200)).items():
                for record in records:
                    event = orjson.loads(record.value)
                    offsets[tp.partition].append(record.offset)
                    events[event["account"]].append((event["id"], event["count"], event["total"]))
        reader.unsubscribe()
        return Output(offsets, events)

    async def await_events(self, topic: str, partitions: int, count: int) -> dict[str, float]:
        """Message id -> monotonic time at which its event could be read, for `count` of them."""
        return {each.message_id: each.at_s for each in await self.listen(topic, partitions, count)}

    async def listen(
        self, topic: str, partitions: int, count: int, so_far: list[Heard] | None = None
    ) -> list[Heard]:
        """The first event of each message, for `count` messages, in the order of reading.

        Args:
            topic: with the events, read from its beginning.
            partitions: of the topic.
            count: after how many messages to end.
            so_far: is appended to meanwhile, for whoever wants to look earlier.
        """
        reader = self._reader
        heard: list[Heard] = [] if so_far is None else so_far
        seen: set[str] = set()
        reader.assign(_partitions(topic, partitions))
        await reader.seek_to_beginning()
        while len(seen) < count:
            for records in (await reader.getmany(timeout_ms=200)).values():
                now_s = time.monotonic()
                for record in records:
                    told = orjson.loads(record.value)
                    if told["id"] not in seen:
                        seen.add(told["id"])
                        heard.append(Heard(told["id"], record.partition, now_s, told))
        reader.unsubscribe()
        return heard


def _partitions(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def no_account(account: str) -> bool:
    """Say of no account that it is silent."""
    return False


def judge(
    load: Iterable[Message],
    committed: Offsets,
    output: Output,
    is_silent: Callable[[str], bool] = no_account,
) -> Verdict:
    """Hold the output against what the load has to lead to, account by account.

    Args:
        load: every message of the source topic.
        committed: of the source topic.
        output: all of the output topic.
        is_silent: tells accounts whose messages must lead to nothing: they are parked.
    """
    expected, due = model(load), due_events(load, committed)
    missing = surplus = wrong = ahead = 0
    for account in expected.keys() | output.events.keys():
        want, got = expected.get(account, []), output.events.get(account, [])
        if is_silent(account):
            want = []
        count = due.get(account, 0)
        right = set(got).intersection(want)
        missing += len(set(want[:count]).difference(got))
        ahead += len(right.intersection(want[count:]))
        surplus += len(got) - len(right)
        wrong += got != want[: len(got)]
    return Verdict(missing, surplus, wrong, ahead)


def model(load: Iterable[Message]) -> dict[str, list[Event]]:
    """Account -> the events of its messages, in order."""
    rows: dict[str, dict[str, int]] = {}
    events: dict[str, list[Event]] = defaultdict(list)
    for message in load:
        account = message.account
        rows[account], told = deposit(
            rows.get(account), {"account": account, "amount": message.amount}, message.message_id
        )
        events[account].append((told["id"], told["count"], told["total"]))
    return events


def due_events(load: Iterable[Message], committed: Offsets) -> dict[str, int]:
    """Account -> how many of its messages are below the committed offset of their partition."""
    offsets: Offsets = defaultdict(int)
    due: dict[str, int] = defaultdict(int)
    for message in load:
        due[message.account] += offsets[message.partition] < committed.get(message.partition, 0)
        offsets[message.partition] += 1
    return due


def effects(sight: Sight, output: Output | None) -> int:
    """Messages with a visible effect: events that a reader sees, or (None) committed offsets."""
    if output is None:
        return sum(sight.committed.values())
    return sum(
        bisect_left(output.offsets.get(partition, []), end)
        for partition, end in sight.visible.items()
    )
