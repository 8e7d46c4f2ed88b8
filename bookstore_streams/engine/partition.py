"""One partition of the engine: takes records, gives each message its turn, commits what is done.

It asks the core what to do and has the answer carried out; no decision about retries, order
or duplicates is taken here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from bookstore_streams.core.decide import Arrived, Due, resume
from bookstore_streams.core.effects import Attempt, RetryInLane
from bookstore_streams.core.envelope import Accepted, Ignored, Reason, accept, inbox_id, replay_id
from bookstore_streams.core.envelope import Rejected as RejectedRecord
from bookstore_streams.core.inbox import Outcome, inbox_key, is_newer
from bookstore_streams.core.parking import ParkedKey, message_key, split_parked_key
from bookstore_streams.core.record import unpack
from bookstore_streams.core.watermark import Watermark
from bookstore_streams.errors import StoreError
from bookstore_streams.ports import Clock, Journal, Probe, Record

from .calls import Calls, Parsed
from .carry_out import CarryOut
from .commit import Committer
from .consumer import Consumer
from .hold import Hold
from .lanes import Lane, RunQueue, Turn, position_of
from .limits import Limits
from .parking_lot import ParkingLot
from .staging import Staging
from .tables import INBOX, PARKED_KEYS, PARKED_MESSAGES

log = logging.getLogger(__name__)

# A worker task gives the loop a chance after this many messages that never had to wait.
TURNS_PER_YIELD = 100

_ARRIVED = Arrived()


class Partition:
    """Everything this worker does for one partition number, over all topics of its consumers.

    Attributes:
        number: of the partition.
        next_offsets: topic -> offset of the next record to take; lower ones are known.
        hold: keeps it still after `pause`.
    """

    def __init__(
        self,
        number: int,
        consumers: Iterable[Consumer],
        journal: Journal,
        offsets: Mapping[str, int],
        *,
        limits: Limits,
        clock: Clock,
        has_lease: Callable[[], bool],
        counters: Counter[str],
        probe: Probe,
        on_failure: Callable[[Partition, Exception], None],
    ) -> None:
        """Set up; nothing runs before `start`.

        Args:
            number: of the partition.
            consumers: all of the app.
            journal: of the partition, open.
            offsets: topic -> offset of the first record to take.
            limits: bounds.
            clock: epoch time.
            has_lease: whether this worker may act as the owner.
            counters: of the engine.
            probe: told each step of each commit.
            on_failure: told once when the partition cannot go on.
        """
        self.number = number
        self.next_offsets = dict(offsets)
        self._consumers = {consumer.name: consumer for consumer in consumers}
        self._readers = {
            topic: tuple(c for c in self._consumers.values() if topic in c.topics)
            for topic in offsets
        }
        self._watermarks = {topic: Watermark() for topic in offsets}
        self._lanes: dict[str, dict[str, Lane]] = {name: {} for name in self._consumers}
        # Inbox keys whose first delivery is being handled, and lanes with another copy of it.
        self._in_flight: dict[bytes, list[Lane]] = {}
        self._journal = journal
        self._store = journal.store
        self._limits = limits
        self._clock = clock
        self._counters = counters
        self._on_failure = on_failure
        self._queue = RunQueue()
        self._lot = ParkingLot(clock)
        self._staging = Staging(journal.store)
        self.hold = Hold(self._queue, has_lease)
        self._calls = Calls(
            self._staging.get,
            limits=limits,
            clock=clock,
            has_lease=self.hold.has_lease,
            tables=journal.store.tables,
            counters=counters,
        )
        self._carry_out = CarryOut(
            self._staging, self._calls, self._lot, limits=limits, clock=clock, counters=counters
        )
        self._committer = Committer(
            journal,
            self._staging,
            self._watermarks,
            limits=limits,
            counters=counters,
            probe=probe,
            on_failure=self._break,
        )
        self._is_closing = False
        self._closed: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Worker tasks that have a lane in hand right now.
        self._busy: set[asyncio.Task[None]] = set()

    # -- life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Schedule the parked keys, then begin to work."""
        now_ms = self._clock.now_ms()
        for row_key, raw in self._store.scan(PARKED_KEYS):
            name, key = split_parked_key(row_key)
            if name in self._consumers:
                parked = ParkedKey.from_row(orjson.loads(raw))
                self._lot.keep(name, key, resume(parked, now_ms))
            else:
                self._counters[f"{name}:parked_without_consumer"] += 1
                log.warning(
                    "Key %r is parked for consumer %r, which this app does not have: it waits "
                    "until there is one again.",
                    key,
                    name,
                )
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._limits.concurrency)]
        self._tasks.append(asyncio.create_task(self._keep(self._lot.wake(self._on_due))))
        self._tasks.append(asyncio.create_task(self._keep(self._calls.watch())))
        self._committer.start()

    async def _keep(self, running: Coroutine[Any, Any, None]) -> None:
        """Await something that runs for ever; what ends it ends the partition."""
        try:
            await running
        except Exception as error:
            self._break(error)

    @property
    def backlog(self) -> int:
        """Records in memory that the watermark has not passed."""
        return sum(map(len, self._watermarks.values()))

    def has_room(self) -> bool:
        """Whether more records may be delivered."""
        return not self._is_closing and self.backlog < self._limits.backlog_max

    async def close(self, *, commit: bool) -> None:
        """Take nothing new, let running handlers end, commit them, give everything back.

        Idempotent; a second call waits for the first.

        Args:
            commit: whether to commit what is finished; never done after a failed commit.
        """
        if self._closed is None:
            self._closed = asyncio.create_task(self._close(commit))
        await asyncio.shield(self._closed)

    async def _close(self, commit: bool) -> None:
        self._is_closing = True
        # Four tenths of the time for running handlers, three for commits; the rest is for
        # giving back the connections and leaving the group.
        tenth_s = self._limits.shutdown_ms / 10_000
        closing = asyncio.create_task(self._committer.close(tenth_s))
        is_waiting = commit and not self._committer.is_broken and not self.hold.is_taken
        busy = self._busy - self._calls.without_lease if is_waiting else set()
        for task in self._tasks:
            if task not in busy:
                task.cancel()
        try:
            if busy:
                await asyncio.wait(busy, timeout=4 * tenth_s)
            for task in busy:
                task.cancel()  # its unit of work was never staged
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=tenth_s)
            await closing
            if commit:
                await asyncio.wait_for(self._committer.commit(), 2 * tenth_s)
        except Exception as error:
            # Nothing is lost: the next owner goes on from what is committed.
            log.warning("partition %s: the last commit failed: %r", self.number, error)
        finally:
            try:
                await self._journal.close()
            except Exception as error:  # the next owner fences whatever is left of it
                log.warning("partition %s was not closed cleanly: %r", self.number, error)

    async def pause(self) -> bool:
        """Let handlers end, commit, and start nothing until `hold` ends; whether all is still."""
        tenth_s = self._limits.shutdown_ms / 10_000
        is_still = await self.hold.take(self._busy, self._calls.without_lease, 4 * tenth_s)
        if is_still:
            await asyncio.wait_for(self._committer.commit(), 2 * tenth_s)
        return is_still and not self._committer.is_broken

    def _break(self, error: Exception) -> None:
        """Stop at once; the engine starts the partition again from what is committed."""
        self._committer.is_broken = True
        if not self._is_closing:
            self._is_closing = True
            self._on_failure(self, error)

    # -- reading ----------------------------------------------------------------------------

    def get(self, table: str, key: bytes) -> bytes | None:
        """A committed row; what is staged is not shown to anybody but handlers."""
        return self._store.get(table, key)

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Committed rows in key order."""
        return self._store.scan(table, prefix, start)

    def is_running(self, consumer: str, key: str) -> bool:
        """Whether a parked key is being tried right now."""
        lane = self._lanes.get(consumer, {}).get(key)
        return lane is not None and lane.head is not None

    # -- taking records ---------------------------------------------------------------------

    def deliver(self, topic: str, records: Sequence[Record]) -> None:
        """Take a whole batch from the fetcher, in offset order.

        Records below the next expected offset are known already and passed over: Faust
        seeks back to committed offsets after a rebalance.
        """
        try:
            self._deliver(topic, records)
        except Exception as error:  # not the fetcher's: it would stop the whole worker
            self._break(error)

    def _deliver(self, topic: str, records: Sequence[Record]) -> None:
        expected = self.next_offsets[topic]
        readers, watermark = self._readers[topic], self._watermarks[topic]
        for record in records:
            if record.offset < expected:
                continue
            slot = watermark.take(record.offset, len(readers))
            for consumer in readers:
                turn = self._turn(consumer, record)
                if isinstance(turn, Ignored):
                    self._counters[f"{consumer.name}:ignored:{turn.cause}"] += 1
                    slot.settle()
                    self._committer.finish()
                    continue
                turn.slot = slot
                lane = self._lane(consumer, turn.key)
                lane.turns.append(turn)
                self._queue.add(lane)
        self.next_offsets[topic] = max(expected, records[-1].offset + 1)
        self._queue.wake()

    def _turn(self, consumer: Consumer, record: Record) -> Turn | Ignored:
        position = position_of(record)
        outcome = accept(
            record.value,
            record.key,
            record.headers,
            consumer.known_types,
            position if consumer.missing_id_from_offset else None,
        )
        if isinstance(outcome, Ignored):
            return outcome
        if isinstance(outcome, Accepted):
            key: str | None = outcome.key
            message_id = outcome.message_id
            document, rejection = outcome.document, None
        else:
            # Without an id its position stands in, so that it is not dead-lettered twice.
            key, message_id = outcome.key, outcome.message_id or position
            document, rejection = None, outcome
        return Turn(
            record,
            key,
            message_id,
            inbox_key(consumer.name, inbox_id(message_id)),
            document,
            rejection,
            len(record.headers) > 1 and replay_id(record.headers) is not None,
        )

    def _lane(self, consumer: Consumer, key: str | None) -> Lane:
        if key is None:  # no key, no order: a lane that nobody else joins
            return Lane(consumer, None, None)
        name = consumer.name
        lanes = self._lanes[name]
        lane = lanes.get(key)
        if lane is None:
            parked = self._carry_out.load(name, key) if self._lot.holds(name, key) else None
            lane = lanes[key] = Lane(consumer, key, parked)
        return lane

    # -- giving turns -----------------------------------------------------------------------

    async def _work(self) -> None:
        """Run lanes for ever: one key at a time here, other keys in the other tasks."""
        queue, committer, busy = self._queue, self._committer, self._busy
        task = asyncio.current_task()
        assert task is not None
        turns = 0
        while not self._is_closing:
            if committer.is_behind:
                await committer.catch_up()
                continue
            lane = await queue.take()
            busy.add(task)
            try:
                is_waiting = await self._step(lane)
            except Exception as error:  # a defect, or the store: never go on with a guess
                self._break(error)
                return
            finally:
                busy.discard(task)
            if not is_waiting:
                lane.is_busy = False
                if lane.turns or lane.is_due:
                    queue.add(lane)  # to the back: a long lane must not stall the watermark
                elif lane.key is not None:
                    self._lanes[lane.consumer.name].pop(lane.key, None)
            turns += 1
            if not turns % TURNS_PER_YIELD:
                await asyncio.sleep(0)

    async def _step(self, lane: Lane) -> bool:
        """Take one step in a lane; whether a timer or another lane is to bring it back."""
        # What arrived behind a parked head takes its place in the parking lot first: that
        # costs no handler, and it holds neither memory nor the watermark.
        while lane.parked is not None and lane.turns and lane.head is None:
            turn = lane.turns[0]
            if self._waits_for_its_copy(lane, turn):
                return True
            await self._carry_out.run(lane, turn, self._carry_out.decide(lane, self._seen(turn)))
            self._committer.finish()
        if lane.parked is not None:
            return await self._step_head(lane) if lane.is_due else False
        if not lane.turns:
            return False
        turn = lane.turns[0]
        attempt, turn.attempt = turn.attempt, None
        if attempt is None:
            if self._waits_for_its_copy(lane, turn):
                return True
            decision = self._carry_out.decide(lane, self._seen(turn))
            first = decision.effects[0]
            if type(first) is not Attempt:
                await self._carry_out.run(lane, turn, decision)
                self._committer.finish()
                return False
            self._in_flight[turn.inbox_key] = []
            turn.round_started_ms = self._clock.now_ms()
            attempt = first
        if not await self._attempt(lane, turn, attempt):
            return True
        for waiting in self._in_flight.pop(turn.inbox_key):
            self._requeue(waiting)
        return False

    def _waits_for_its_copy(self, lane: Lane, turn: Turn) -> bool:
        """Whether the same id is in flight under another key: whoever is first decides for both."""
        others = self._in_flight.get(turn.inbox_key)
        if others is None:
            return False
        others.append(lane)
        return True

    async def _step_head(self, lane: Lane) -> bool:
        """Try the parked head of a lane that is due; whether a timer is to bring it back."""
        turn, attempt = lane.head, None
        if turn is not None:
            attempt, turn.attempt = turn.attempt, None
        if turn is None or attempt is None:
            turn = self._head(lane)
            decision = self._carry_out.decide(lane, Due(self._seen(turn).known))
            if not decision.effects:
                lane.is_due = False
                if lane.parked is not None and lane.key is not None:
                    # The clock was set back meanwhile: its time is still to come.
                    self._lot.keep(lane.consumer.name, lane.key, resume(lane.parked, 0))
                return False
            lane.head = turn
            turn.round_started_ms = self._clock.now_ms()
            first = decision.effects[0]
            if type(first) is not Attempt:
                parsed = self._calls.parse(lane, turn)
                event = parsed.event if isinstance(parsed, Parsed) else None
                await self._carry_out.run(lane, turn, decision, event=event)
                self._after_head(lane)
                return False
            attempt = first
        if not await self._attempt(lane, turn, attempt):
            return True
        self._after_head(lane)
        return False

    def _after_head(self, lane: Lane) -> None:
        """The head was settled, or waits again: is the next one due right now?"""
        lane.head = None
        parked = lane.parked
        lane.is_due = parked is not None and parked.due_ms <= self._clock.now_ms()
        self._committer.finish()

    async def _attempt(self, lane: Lane, turn: Turn, attempt: Attempt) -> bool:
        """Make one attempt and have it carried out; False when the next one is to come soon."""
        parsed = self._calls.parse(lane, turn, is_repeated=attempt.in_round > 1)
        event = context = None
        if isinstance(parsed, Parsed):
            event = parsed.event
            outcome, context = await self._calls.attempt(lane, turn, attempt, parsed)
        else:
            outcome = parsed
        decision = self._carry_out.decide(lane, outcome)
        last = decision.effects[-1]
        if type(last) is RetryInLane:
            self._counters[f"{lane.consumer.name}:retries"] += 1
            turn.attempt = last.attempt
            asyncio.get_running_loop().call_later(last.delay_ms / 1000, self._requeue, lane)
            return False
        await self._carry_out.run(lane, turn, decision, context=context, event=event)
        self._committer.finish()
        return True

    def _requeue(self, lane: Lane) -> None:
        """Bring back a lane that waited."""
        lane.is_busy = False
        self._queue.add(lane)
        self._queue.wake()

    def _on_due(self, keys: Iterable[tuple[str, str]]) -> None:
        for name, key in keys:
            lane = self._lane(self._consumers[name], key)
            lane.is_due = True
            self._queue.add(lane)
        self._queue.wake()

    def _head(self, lane: Lane) -> Turn:
        """The head of a parked key, from its row."""
        consumer, parked = lane.consumer, lane.parked
        assert parked is not None
        assert lane.key is not None
        raw = self._staging.get(PARKED_MESSAGES, message_key(consumer.name, lane.key, parked.head))
        if raw is None:
            raise StoreError(
                f"Parked message {parked.head} of key {lane.key!r} ({consumer.name}) is missing "
                "while its key says that it waits."
            )
        record = unpack(raw)
        turn = self._turn(consumer, record)
        if isinstance(turn, Turn):
            return turn
        # It was parked by a version of the consumer that knew its type.
        rejected = RejectedRecord(
            Reason.PERMANENT,
            "PermanentError",
            f"this version of {consumer.name} does not handle it any more: {turn.cause}",
            lane.key,
            None,
        )
        position = position_of(record)
        known = accept(record.value, record.key, record.headers, None, None)
        message_id = known.message_id if isinstance(known, Accepted) else position
        identity = inbox_key(consumer.name, inbox_id(message_id))
        return Turn(record, lane.key, message_id, identity, None, rejected, False)

    def _seen(self, turn: Turn) -> Arrived:
        """The message's arrival, with what the inbox knows of it."""
        raw = self._staging.get(INBOX, turn.inbox_key)
        if raw is None:
            return _ARRIVED
        row = orjson.loads(raw)
        kept_until_ms = row["at_ms"] + self._limits.inbox_retention_ms
        if row["outcome"] != Outcome.PARKED and kept_until_ms < self._clock.now_ms():
            return _ARRIVED
        record = turn.record
        is_replay = turn.is_replay and is_newer(row, record.topic, record.partition, record.offset)
        return Arrived(row["outcome"], is_replay)
