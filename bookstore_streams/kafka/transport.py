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

from .lease import Lease
from .unreadable import Unreadable

if TYPE_CHECKING:
    from .app import App

# Longest fetch, in seconds: while some engine partition waits for room or for its recovery,
# and otherwise. Faust itself would wait a whole second.
FETCH_WAIT_S_BLOCKED = 0.02
FETCH_WAIT_S_MAX = 0.2
# How long leaving the group may take.
STOP_S_MAX = 2.0
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
            # Behind a record that cannot be read the good ones before it are taken singly.
            most = 1 if tp in self._unreadable else left
            try:
                found = await fetcher.fetched_records([tp], timeout=0, max_records=most)
            except Exception as error:
                position = fetcher._subscriptions.subscription.assignment.state_value(tp).position
                self._unreadable.failed(tp, position, error)
                continue
            for partition, batch in found.items():
                self._unreadable.went_on(tp)
                records[partition] = batch
                if left is not None:
                    left -= len(batch)
            if left is not None and left <= 0:
                break
        return records

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

    async def renew_lease(self) -> None:
        """Ask the group now whether it knows us, instead of at the next heartbeat."""
        await self.call_thread(self._renew_lease)

    async def _keep_lease(self) -> None:
        interval_s = self.app.conf.broker_heartbeat_interval
        while not self.should_stop:
            await self._renew_lease()
            await asyncio.sleep(interval_s)

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
                self.consumer.lease.renew(sent_at_s)
            elif coordinator.generation < 0:  # the group has counted us out
                self.consumer.lease.end()
        except aiokafka.errors.KafkaError as error:
            self.log.warning("The group did not answer a heartbeat: %r", error)


class Consumer(stock.Consumer):
    """The group consumer: engine records to the engine, the rest to Faust."""

    app: App
    _thread: ConsumerThread

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lease = Lease(int(self.app.conf.broker_session_timeout * 1000))
        # Nobody seeks while a fetch is on its way: it would skip the records in between.
        self._fetch_gate = asyncio.Lock()

    def _new_consumer_thread(self) -> ConsumerThread:
        return ConsumerThread(self, loop=self.loop, beacon=self.beacon)

    def has_lease(self) -> bool:
        """Whether the group still counts this worker as alive."""
        return self.lease.holds()

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
        """Commit and close before letting go; runs before the group is joined again."""
        await self.app.engine.release(self._engine_partitions(revoked))
        await super().on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Open what the group gave to this worker."""
        await super().on_partitions_assigned(assigned, generation_id)
        await self._thread.renew_lease()
        self.app.engine.assign(self._engine_partitions(assigned))

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


class Transport(stock.Transport):
    """Faust's transport with our consumer."""

    Consumer: ClassVar[type[Consumer]] = Consumer
