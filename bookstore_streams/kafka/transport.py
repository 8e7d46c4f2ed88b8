"""Faust's aiokafka transport, with whole batches of engine topics taken off its road.

Faust's per-message path is what makes it slow, and its acknowledgements and commits cannot
keep order or once through a crash. So records of engine topics go from the fetcher to the
partition's lanes; everything else goes on as Faust knows it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import aiokafka
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import ConsumerStoppedError
from faust.transport.drivers import aiokafka as stock
from faust.types import TP

from . import lenient
from .predecessor import remember
from .unreadable import Unreadable

if TYPE_CHECKING:
    from .app import App

# Longest fetch, in seconds: while some engine partition waits for room or for its recovery,
# and otherwise. Faust itself would wait a whole second.
FETCH_WAIT_S_BLOCKED = 0.02
FETCH_WAIT_S_MAX = 0.2
# How long leaving the group may take.
STOP_S_MAX = 2.0
# The membership of a worker that is in no group.
NOWHERE = ("", -1)
# How long the broker may hold back an empty answer.
FETCH_WAIT_MS = 200


class ConsumerThread(stock.AIOKafkaConsumerThread):
    """The thread of the group consumer; it also keeps the lease."""

    consumer: Consumer

    async def on_start(self) -> None:
        """Call when the thread starts."""
        self._unreadable = Unreadable()
        await super().on_start()
        if not self.app.client_only:
            self.add_future(self._keep_lease())

    async def on_thread_stop(self) -> None:
        """Leave the group, but not at any price.

        Without a broker aiokafka's own stop ends in a cancellation, at which the thread would
        die, and Faust waits a minute for a dead thread.
        """
        stopping = asyncio.ensure_future(super().on_thread_stop())
        await asyncio.wait([stopping], timeout=STOP_S_MAX)
        if not stopping.done():
            stopping.cancel()
            self.log.warning("The group was not left in time; it counts us out by itself.")
        elif not stopping.cancelled() and (error := stopping.exception()) is not None:
            self.log.warning("The group could not be left: %r", error)

    def _create_worker_consumer(self, transport: stock.Transport) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # Another app of ours may write the source topics in transactions.
        consumer._isolation_level = "read_committed"
        # Faust waits 1.5 s: a partition that has just opened would have to wait for it.
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        return consumer

    async def _fetch_records(
        self,
        consumer: aiokafka.AIOKafkaConsumer,
        active_partitions: set[TP] | None,
        timeout: float | None = None,
        max_records: int | None = None,
    ) -> Any:
        """Take what was fetched, partition by partition.

        Taken all at once, an error of one partition would drop the records of those looked
        at before it, whose positions have moved already; and it would end the worker.
        """
        if not active_partitions:
            return await super()._fetch_records(
                consumer, active_partitions or set(), timeout, max_records
            )
        if not self.consumer.flow_active:
            return {}
        fetcher = consumer._fetcher
        if consumer._closed or fetcher._closed:
            raise ConsumerStoppedError
        with fetcher._subscriptions.fetch_context():
            records = await self._drain(fetcher, active_partitions, max_records)
            if not records and timeout:
                waiter = fetcher._create_fetch_waiter()
                await asyncio.wait([waiter], timeout=timeout)
                if not waiter.done():
                    waiter.cancel()
                    return {}
                waiter.result()  # raises where the broker denies access
                records = await self._drain(fetcher, active_partitions, max_records)
            return records

    async def _drain(
        self, fetcher: Fetcher, partitions: set[TP], max_records: int | None
    ) -> dict[Any, list[Any]]:
        records: dict[Any, list[Any]] = {}
        left = max_records
        for tp in list(fetcher._records):
            if tp not in partitions or self._unreadable.is_resting(tp):
                continue
            try:
                found = await fetcher.fetched_records([tp], timeout=0, max_records=left)
            except Exception as error:
                # The position has not moved, so aiokafka drops what is left of this answer.
                found = await self._read_leniently(fetcher, tp, left, error)
            for partition, batch in found.items():
                records[partition] = batch
                if left is not None:
                    left -= len(batch)
            if left is not None and left <= 0:
                break
        return records

    async def _read_leniently(
        self, fetcher: Fetcher, tp: Any, records_max: int | None, error: Exception
    ) -> dict[Any, list[Any]]:
        """Read what aiokafka could not; where nobody can, the partition rests."""
        state = fetcher._subscriptions.subscription.assignment.state_value(tp)
        position, limit = state.position, records_max or self.app.conf.broker_max_poll_records
        try:
            batch, next_position = await lenient.read(
                self._ensure_consumer()._client,
                tp,
                position,
                bytes_max=self.app.conf.consumer_max_fetch_size,
                records_max=limit,
            )
        except Exception as again:
            self._unreadable.failed(tp, position, again)
            return {}
        if not state.has_valid_position or state.position != position:
            return {}  # sought or revoked meanwhile
        state.consumed_to(next_position)
        self._unreadable.went_on(tp, position, error)
        return {tp: batch} if batch else {}

    async def committed_offsets(self, partitions: Iterable[TP]) -> dict[TP, int]:
        """The committed offset of each partition that has one."""
        found: dict[TP, int] = await self.call_thread(self._committed_offsets, partitions)
        return found

    async def _committed_offsets(self, partitions: Iterable[TP]) -> dict[TP, int]:
        consumer, found = self._ensure_consumer(), {}
        for tp in partitions:
            offset = await consumer.committed(stock.ensure_aiokafka_TP(tp))
            if offset is not None:
                found[tp] = offset
        return found

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek Faust's own partitions; the engine says itself where each of its goes on."""
        consumer, topics = self._ensure_consumer(), self.consumer.app.engine.topics
        stock_partitions = [tp for tp in self.assignment() if tp.topic not in topics]
        if not stock_partitions:  # none would mean "all" to aiokafka
            return {}
        found: Mapping[TP, int] = await self.call_thread(
            consumer.seek_to_committed, *map(stock.ensure_aiokafka_TP, stock_partitions)
        )
        return found

    def membership(self) -> tuple[str, int]:
        """Who this worker is in the group, and in which generation; negative when in none."""
        coordinator = self._ensure_consumer()._coordinator
        return coordinator.member_id, coordinator.generation

    async def renew_lease(self) -> None:
        """Ask the group now whether it knows us, instead of at the next heartbeat."""
        await self.call_thread(self._renew_lease)

    async def _keep_lease(self) -> None:
        interval_s = self.app.conf.broker_heartbeat_interval
        while not self.should_stop:
            # While it joins, a heartbeat would wait behind the request to join, name the former
            # generation by then, and be taken for one of a member that was counted out.
            if not self.consumer.is_joining:
                await self._renew_lease()
            await self._look_for_topics()
            await asyncio.sleep(interval_s)

    async def _look_for_topics(self) -> None:
        """Ask for the source topics again where the broker did not tell of them.

        aiokafka would ask next in five minutes; until then a leader gives nobody anything. With
        another answer it joins the group again by itself.
        """
        consumer = self._ensure_consumer()
        wanted = self.consumer.app.engine.topics.intersection(consumer.subscription() or ())
        if any(consumer.partitions_for_topic(topic) is None for topic in wanted):
            self.log.warning("The broker told of no partitions of %s: asking again.", wanted)
            await consumer._client.force_metadata_update()

    async def _renew_lease(self) -> None:
        # aiokafka heartbeats by itself, but does not tell when one was answered last. A
        # heartbeat of our own is one small request more, and needs none of its internals
        # to be replaced.
        coordinator = self._ensure_consumer()._coordinator
        if coordinator is None or coordinator.generation < 0 or not coordinator.member_id:
            return
        sent_at_s = time.monotonic()
        try:
            if await coordinator._do_heartbeat():
                self.consumer.app.lease.renew(sent_at_s)
            elif coordinator.generation < 0:  # the group has counted us out
                self.consumer.app.lease.end()
        except aiokafka.errors.KafkaError as error:
            self.log.warning("The group did not answer a heartbeat: %r", error)


class Consumer(stock.Consumer):
    """The group consumer: engine records to the engine, the rest to Faust.

    Attributes:
        is_joining: whether it waits for the group to give out partitions anew.
    """

    app: App
    _thread: ConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Nobody seeks while a fetch is on its way: it would skip the records in between.
        self._fetch_gate = asyncio.Lock()
        self.is_joining = False
        self._membership = NOWHERE

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def committed_offsets(self, number: int, topics: Iterable[str]) -> dict[str, int]:
        """Topic -> committed offset; topics without one are left out."""
        partitions = [self._new_topicpartition(topic, number) for topic in topics]
        offsets = await self._thread.committed_offsets(partitions)
        return {tp.topic: offset for tp, offset in offsets.items()}

    async def seek_all(self, number: int, offsets: Mapping[str, int]) -> None:
        """Let fetching go on at these offsets: topic -> offset."""
        async with self._fetch_gate:
            await self.seek_wait(
                {self._new_topicpartition(topic, number): at for topic, at in offsets.items()}
            )

    async def _wait_next_records(self, timeout: float) -> Any:
        """Look again soon where there is nothing to fetch from: Faust would sleep a second."""
        is_idle = self.flow_active and not self._get_active_partitions()
        if is_idle and not self.app.client_only:  # a client has no assignment, and fetches all
            await self.sleep(FETCH_WAIT_S_MAX)
            return {}, set()
        return await super()._wait_next_records(timeout)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:
        engine = self.app.engine
        wanted, is_blocked = set(), False
        for tp in active_partitions or ():
            if tp.topic not in engine.topics or engine.accepts(tp.partition):
                wanted.add(tp)
            else:
                is_blocked = True
        if active_partitions and not wanted:  # an empty set would mean "all" to aiokafka
            await asyncio.sleep(FETCH_WAIT_S_BLOCKED)
            return {}
        async with self._fetch_gate:
            records = await super()._getmany(
                wanted or active_partitions,
                FETCH_WAIT_S_BLOCKED if is_blocked else min(timeout, FETCH_WAIT_S_MAX),
            )
            left = {}
            for tp, batch in records.items():
                if tp.topic not in engine.topics:
                    left[tp] = batch
                    continue
                partition = engine.open_partition(tp.partition)
                if partition is not None and batch:
                    partition.deliver(tp.topic, batch)
        return left

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Commit and stand still before the group is joined again; what is open stays open.

        Each handler has ended by then: another worker may start one as soon as the group has
        decided.
        """
        numbers = self._engine_partitions(revoked)
        _, generation = self._thread.membership()
        if generation < 0:  # the group has counted this worker out
            await self.app.engine.release(numbers)
        else:
            await self.app.engine.pause(numbers)
        await super().on_partitions_revoked(revoked)
        self.is_joining = True

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Go on with what stays, open what is new."""
        self.is_joining = False
        last, self._membership = self._membership, self._thread.membership()
        await self._thread.renew_lease()
        if last[0] != self._membership[0]:
            remember(self.app.directory.path, self._membership[0])
        numbers = self._engine_partitions(assigned)
        self.app.engine.assign(numbers, is_unbroken=is_next(last, self._membership))
        await self._seek_open(numbers)
        await super().on_partitions_assigned(assigned, generation_id)
        # Faust stops all fetching until its own tables are recovered. The engine's partitions
        # need not wait for that: each has a door of its own.
        self.resume_partitions({tp for tp in assigned if tp.topic in self.app.engine.topics})
        self.resume_flow()

    async def _seek_open(self, numbers: Iterable[int]) -> None:
        """Let fetching go on where the partitions that stayed have got to."""
        async with self._fetch_gate:
            offsets = {
                self._new_topicpartition(topic, number): offset
                for number in numbers
                if (partition := self.app.engine.open_partition(number)) is not None
                for topic, offset in partition.next_offsets.items()
            }
            if offsets:
                await self.seek_wait(offsets)

    def _engine_partitions(self, partitions: Iterable[TP]) -> Mapping[int, list[str]]:
        numbers: dict[int, list[str]] = defaultdict(list)
        for tp in partitions:
            if tp.topic in self.app.engine.topics:
                numbers[tp.partition].append(tp.topic)
        return numbers

    async def on_stop(self) -> None:
        """Release while the consumer thread is still alive."""
        await self.app.engine.release_all()
        await super().on_stop()

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Look for stalls where Faust's own detector can see any: outside the engine."""
        if tp.topic not in self.app.engine.topics:
            super().verify_event_path(now, tp)


def is_next(last: tuple[str, int], now: tuple[str, int]) -> bool:
    """Whether a member was in the generation right before: nobody had its partitions since.

    Args:
        last: member id and generation of the assignment before.
        now: of this one.
    """
    return now == (last[0], last[1] + 1)


class Transport(stock.Transport):
    """Faust's transport with our consumer."""

    Consumer: ClassVar[type[Consumer]] = Consumer
