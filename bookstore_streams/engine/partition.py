"""One partition of the engine: takes records, gives each message its turn, commits what is done.

It asks the core what to do and carries the answer out; no decision about retries, order
or duplicates is taken here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from bookstore_streams.core.classify import Failure, classify
from bookstore_streams.core.deadline import deadline_at_ms, is_past
from bookstore_streams.core.decide import (
    Arrived,
    DeadlinePassed,
    Decision,
    Due,
    Event,
    Failed,
    HookFailed,
    Rejected,
    Succeeded,
    TooLarge,
    decide,
    resume,
)
from bookstore_streams.core.effects import (
    ApplyWork,
    Attempt,
    Count,
    DeadLetter,
    DropKey,
    DropMessage,
    RetryInLane,
    SaveInbox,
    SaveKey,
    SaveMessage,
    Settle,
)
from bookstore_streams.core.envelope import Accepted, Ignored, Reason, accept, inbox_id, replay_id
from bookstore_streams.core.envelope import Rejected as RejectedRecord
from bookstore_streams.core.inbox import inbox_key, inbox_row
from bookstore_streams.core.parking import ParkedKey, message_key, parked_key, split_parked_key
from bookstore_streams.core.record import pack, unpack
from bookstore_streams.core.watermark import Watermark
from bookstore_streams.errors import (
    InvariantError,
    LeaseLostError,
    RecordTooLargeError,
    StoreError,
)
from bookstore_streams.ports import Clock, Journal, Probe, Record

from .consumer import Consumer
from .dead_letters import dead_letter
from .lanes import Lane, Progress, RunQueue, Turn
from .schedule import Schedule
from .staging import Staging
from .unit_of_work import Context, current

log = logging.getLogger(__name__)

INBOX = "inbox"
PARKED_KEYS = "parked_keys"
PARKED_MESSAGES = "parked_messages"

# A worker task gives the loop a chance after this many messages that never had to wait.
TURNS_PER_YIELD = 100
# How often a task looks whether a lost lease is back, and whether a handler takes too long.
LEASE_POLL_S = 0.05
WATCH_S = 0.25
# Messages that may finish while a commit is under way, in commits.
FINISHED_FACTOR = 2
# Room in a record for what the batch and the transaction add to a row.
ROW_OVERHEAD_BYTES = 1_024

_NEVER = float("inf")
_ARRIVED = Arrived()
_DUE = Due()
_LEASE_LOST = Failure(True, "LeaseLostError", "")


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a partition; see docs/settings.md for each."""

    concurrency: int = 32
    backlog_max: int = 4_000
    commit_interval_ms: int = 50
    commit_messages_max: int = 2_000
    message_bytes_max: int = 1_000_000
    row_bytes_max: int = 4_194_304
    inbox_retention_ms: int = 604_800_000
    shutdown_ms: int = 10_000


class Partition:
    """Everything this worker does for one partition number, over all topics of its consumers.

    Attributes:
        number: of the partition.
        backlog: messages in memory that are not settled.
        next_offsets: topic -> offset of the next record to take; lower ones are known.
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
        self.number = number
        self.backlog = 0
        self.next_offsets = dict(offsets)
        self._consumers = tuple(consumers)
        self._readers = {
            topic: tuple(c for c in self._consumers if topic in c.topics) for topic in offsets
        }
        self._watermarks = {topic: Watermark() for topic in offsets}
        self._lanes: dict[str, dict[str, Lane]] = {c.name: {} for c in self._consumers}
        self._parked: dict[str, set[str]] = {c.name: set() for c in self._consumers}
        self._journal = journal
        self._store = journal.store
        self._staging = Staging(journal.store)
        self._limits = limits
        self._clock = clock
        self._has_lease = has_lease
        self._counters = counters
        self._probe = probe
        self._on_failure = on_failure
        self._queue = RunQueue()
        self._schedule: Schedule[tuple[str, str]] = Schedule()
        self._by_name = {c.name: c for c in self._consumers}
        # Inbox keys whose first delivery is being handled, and lanes with another copy of it.
        self._in_flight: dict[bytes, list[Lane]] = {}
        self._finished = 0
        self._is_closing = False
        self._is_broken = False
        self._closed: asyncio.Task[None] | None = None
        self._wake_commit = asyncio.Event()
        self._is_full = asyncio.Event()
        self._is_drained = asyncio.Event()
        self._finished_max = FINISHED_FACTOR * limits.commit_messages_max
        self._commit_lock = asyncio.Lock()
        self._wake_timer = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._committer: asyncio.Task[None] | None = None
        # worker task -> when its handler call is to be cancelled, monotonic seconds
        self._overdue_at: dict[asyncio.Task[None], float] = {}
        self._timed_out: set[asyncio.Task[None]] = set()
        self._last_commit_s = 0.0

    # -- life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Schedule the parked keys, then begin to work."""
        now_ms = self._clock.now_ms()
        for row_key, raw in self._store.scan(PARKED_KEYS):
            name, key = split_parked_key(row_key)
            if name not in self._by_name:
                continue  # a consumer that this version of the app no longer has
            self._parked[name].add(key)
            due_ms = resume(ParkedKey.from_row(orjson.loads(raw)), now_ms)
            if due_ms is not None:
                self._schedule.set((name, key), due_ms)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._limits.concurrency)]
        self._tasks += [
            asyncio.create_task(self._wake_due_keys()),
            asyncio.create_task(self._watch_handlers()),
        ]
        self._committer = asyncio.create_task(self._commit_when_done())

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
        self._wake_commit.set()
        self._is_full.set()
        self._is_drained.set()
        # Half of the time for running handlers, a quarter for their commit: the rest is for
        # giving back the connections and leaving the group.
        patience_s = self._limits.shutdown_ms / 2_000
        busy = set() if self._is_broken or not commit else set(self._overdue_at)
        for task in self._tasks:
            if task not in busy:
                task.cancel()
        try:
            if busy:
                await asyncio.wait(busy, timeout=patience_s)
            for task in busy:
                task.cancel()  # its unit of work was never staged
            waiting = [*self._tasks] if self._committer is None else [*self._tasks, self._committer]
            if waiting:
                await asyncio.wait(waiting, timeout=patience_s / 2)
            if commit and not self._is_broken:
                await asyncio.wait_for(self._commit(), patience_s / 2)
        except Exception as error:
            # Nothing is lost: the next owner goes on from what is committed.
            log.warning("partition %s: the last commit failed: %r", self.number, error)
        finally:
            if self._committer is not None:
                self._committer.cancel()
            await self._journal.close()

    # -- reading ----------------------------------------------------------------------------

    def get(self, table: str, key: bytes) -> bytes | None:
        """A committed row; what is staged is not shown to anybody but handlers."""
        return self._store.get(table, key)

    def scan(
        self, table: str, prefix: bytes = b"", start: bytes | None = None
    ) -> Iterable[tuple[bytes, bytes]]:
        """Committed rows in key order."""
        return self._store.scan(table, prefix, start)

    def is_running(self, consumer: str, key: str) -> bool:
        """Whether a parked key is being tried right now."""
        lane = self._lanes.get(consumer, {}).get(key)
        return lane is not None and lane.is_busy

    # -- taking records ---------------------------------------------------------------------

    def deliver(self, topic: str, records: Sequence[Record]) -> None:
        """Take a whole batch from the fetcher, in offset order.

        Records below the next expected offset are known already and passed over: Faust
        seeks back to committed offsets after a rebalance.
        """
        expected = self.next_offsets[topic]
        readers, watermark = self._readers[topic], self._watermarks[topic]
        for record in records:
            if record.offset < expected:
                continue
            slot = watermark.take(record.offset, len(readers))
            for consumer in readers:
                position = f"{topic}-{record.partition}-{record.offset}"
                outcome = accept(
                    record.value,
                    record.key,
                    record.headers,
                    consumer.known_types,
                    position if consumer.missing_id_from_offset else None,
                )
                if isinstance(outcome, Ignored):
                    self._counters[f"{consumer.name}:ignored:{outcome.cause}"] += 1
                    slot.settle()
                    self._finish()
                    continue
                turn = _turn(record, consumer, outcome, position)
                turn.slot = slot
                self._push(consumer, turn)
        self.next_offsets[topic] = max(expected, records[-1].offset + 1)
        self._queue.wake()

    def _push(self, consumer: Consumer, turn: Turn) -> None:
        lane = self._lane(consumer, turn.key)
        lane.turns.append(turn)
        self.backlog += 1
        self._queue.add(lane)

    def _lane(self, consumer: Consumer, key: str | None) -> Lane:
        if key is None:  # no key, no order: a lane that nobody else joins
            return Lane(consumer, None, None)
        lanes = self._lanes[consumer.name]
        lane = lanes.get(key)
        if lane is None:
            parked = self._load(consumer.name, key) if key in self._parked[consumer.name] else None
            lane = lanes[key] = Lane(consumer, key, parked)
        return lane

    def _load(self, consumer: str, key: str) -> ParkedKey | None:
        raw = self._staging.get(PARKED_KEYS, parked_key(consumer, key))
        return None if raw is None else ParkedKey.from_row(orjson.loads(raw))

    # -- giving turns -----------------------------------------------------------------------

    async def _work(self) -> None:
        """Run lanes for ever: one key at a time here, other keys in the other tasks."""
        queue, task = self._queue, asyncio.current_task()
        assert task is not None
        turns = 0
        while not self._is_closing:
            if self._finished >= self._finished_max:
                # The commit under way needs the loop more than this does, and what waits for
                # the next one is bounded.
                await self._is_drained.wait()
                continue
            lane = await queue.take()
            self._overdue_at[task] = _NEVER
            try:
                progress = await self._run(lane, task)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # a defect, or the store: never go on with a guess
                self._break(error)
                return
            finally:
                del self._overdue_at[task]
            if progress is not Progress.WAITS:
                lane.is_busy = False
                if progress is Progress.MORE:
                    queue.add(lane)  # to the back: a long lane must not stall the watermark
                elif lane.key is not None:
                    self._lanes[lane.consumer.name].pop(lane.key, None)
            turns += 1
            if not turns % TURNS_PER_YIELD:
                await asyncio.sleep(0)

    async def _run(self, lane: Lane, task: asyncio.Task[None]) -> Progress:
        """Take one step in a lane."""
        turns = lane.turns
        # What arrived behind a parked head takes its place in the parking lot first: that
        # costs no handler, and it holds neither memory nor the watermark.
        while lane.parked is not None and turns and lane.head is None:
            turn = turns[0]
            await self._carry_out(lane, turn, self._decide(lane, self._arrived(turn)))
        if lane.parked is not None:
            return await self._run_head(lane, task) if lane.is_due else Progress.NOTHING
        if not turns:
            return Progress.NOTHING
        turn = turns[0]
        attempt, turn.attempt = turn.attempt, None
        if attempt is None:
            others = self._in_flight.get(turn.inbox_key)
            if others is not None:
                # The same id under another key: whoever is first decides for both.
                others.append(lane)
                return Progress.WAITS
            decision = self._decide(lane, self._arrived(turn))
            first = decision.effects[0]
            if type(first) is not Attempt:
                await self._carry_out(lane, turn, decision)
                return Progress.MORE if turns else Progress.NOTHING
            self._in_flight[turn.inbox_key] = []
            turn.round_started_ms = self._clock.now_ms()
            attempt = first
        if not await self._attempt(lane, turn, attempt, task):
            return Progress.WAITS
        for waiting in self._in_flight.pop(turn.inbox_key):
            self._requeue(waiting)
        return Progress.MORE if turns else Progress.NOTHING

    async def _run_head(self, lane: Lane, task: asyncio.Task[None]) -> Progress:
        """Try the parked head of a lane that is due."""
        turn, attempt = lane.head, None
        if turn is not None:
            attempt, turn.attempt = turn.attempt, None
        if turn is None or attempt is None:
            decision = self._decide(lane, _DUE)
            if not decision.effects:
                lane.is_due = False
                return Progress.NOTHING
            turn = lane.head = self._head_turn(lane)
            turn.round_started_ms = self._clock.now_ms()
            first = decision.effects[0]
            if type(first) is not Attempt:
                event, _ = self._parse(lane, turn)
                await self._carry_out(lane, turn, decision, event=event)
                return self._after_head(lane)
            attempt = first
        if not await self._attempt(lane, turn, attempt, task):
            return Progress.WAITS
        return self._after_head(lane)

    def _after_head(self, lane: Lane) -> Progress:
        """The head was settled, or waits again: is there more to do in this lane right now?"""
        lane.head = None
        parked = lane.parked
        lane.is_due = parked is not None and parked.due_ms <= self._clock.now_ms()
        return Progress.MORE if lane.is_due or lane.turns else Progress.NOTHING

    def _head_turn(self, lane: Lane) -> Turn:
        assert lane.parked is not None
        assert lane.key is not None
        row_key = message_key(lane.consumer.name, lane.key, lane.parked.head)
        raw = self._staging.get(PARKED_MESSAGES, row_key)
        if raw is None:
            raise StoreError(
                f"Parked message {lane.parked.head} of key {lane.key!r} ({lane.consumer.name}) is "
                "missing while its key says that it waits."
            )
        record = unpack(raw)
        position = f"{record.topic}-{record.partition}-{record.offset}"
        consumer = lane.consumer
        outcome = accept(
            record.value,
            record.key,
            record.headers,
            consumer.known_types,
            position if consumer.missing_id_from_offset else None,
        )
        if isinstance(outcome, Ignored):
            outcome = RejectedRecord(
                Reason.PERMANENT,
                "PermanentError",
                f"this version of the consumer does not know it any more: {outcome.cause}",
                lane.key,
                None,
            )
        return _turn(record, consumer, outcome, position)

    def _arrived(self, turn: Turn) -> Arrived:
        raw = self._staging.get(INBOX, turn.inbox_key)
        if raw is None:
            return _ARRIVED
        row = orjson.loads(raw)
        if row["at_ms"] + self._limits.inbox_retention_ms < self._clock.now_ms():
            return _ARRIVED
        return Arrived(row["outcome"], turn.is_replay)

    def _decide(self, lane: Lane, event: Event) -> Decision:
        return decide(lane.parked, event, self._clock.now_ms(), lane.consumer.policy)

    async def _attempt(
        self, lane: Lane, turn: Turn, attempt: Attempt, task: asyncio.Task[None]
    ) -> bool:
        """Make one attempt and carry out what follows; False when another one is to come soon."""
        consumer = lane.consumer
        event, outcome = self._parse(lane, turn)
        context: Context | None = None
        if outcome is None:
            context = self._context(lane, turn, attempt)
            outcome = await self._call(lane, turn, attempt, event, context, task)
        decision = self._decide(lane, outcome)
        last = decision.effects[-1]
        if type(last) is RetryInLane:
            self._counters[f"{consumer.name}:retries"] += 1
            turn.attempt = last.attempt
            asyncio.get_running_loop().call_later(last.delay_ms / 1000, self._requeue, lane)
            return False
        await self._carry_out(lane, turn, decision, context=context, event=event)
        return True

    def _requeue(self, lane: Lane) -> None:
        """Bring back a lane that waited."""
        lane.is_busy = False
        self._queue.add(lane)
        self._queue.wake()

    def _parse(self, lane: Lane, turn: Turn) -> tuple[Any, Event | None]:
        """The event, or what to tell the core instead of calling the handler."""
        if turn.rejection is not None:
            return None, Rejected(turn.rejection, turn.message_id)
        consumer = lane.consumer
        try:
            event = consumer.parse(turn.document)
        except Exception as error:
            failure = classify(error, consumer.transient)
            rejection = RejectedRecord(
                Reason.PERMANENT,
                failure.error_type,
                failure.error_message,
                turn.key,
                turn.message_id,
            )
            return None, Rejected(rejection, turn.message_id)
        if (
            lane.parked is not None
            and lane.parked.attempts
            and is_past(self._deadline_ms(consumer, event), self._clock.now_ms())
        ):
            return event, DeadlinePassed(turn.message_id)
        return event, None

    def _deadline_ms(self, consumer: Consumer, event: Any) -> int | None:
        if consumer.deadline_from is None:
            return None
        return deadline_at_ms(consumer.policy, consumer.deadline_from(event))

    def _context(self, lane: Lane, turn: Turn, attempt: Attempt | None) -> Context:
        return Context(
            lane.consumer.name,
            turn.key or "",
            turn.message_id,
            turn.record.headers,
            0 if attempt is None else attempt.number,
            0 if attempt is None else attempt.in_round,
            self._clock.now_ms(),
            self._staging.get,
            self._has_lease,
            self._limits.message_bytes_max,
            is_hook=attempt is None,
        )

    async def _call(
        self,
        lane: Lane,
        turn: Turn,
        attempt: Attempt,
        event: Any,
        context: Context,
        task: asyncio.Task[None],
    ) -> Event:
        """Call the handler; whatever it does becomes an event for the core."""
        consumer = lane.consumer
        while True:
            while not self._has_lease():  # noqa: ASYNC110 - another thread tells, by no event
                await asyncio.sleep(LEASE_POLL_S)
            failure = await self._guarded(consumer, consumer.handle(event, context), context, task)
            if failure is None:
                return Succeeded(attempt)
            if failure is not _LEASE_LOST:
                break
            # Not an attempt: nobody was asked. Wait until the group has heard of us again,
            # or until the partition is taken away.
            context = self._context(lane, turn, attempt)
        now_ms = self._clock.now_ms()
        return Failed(
            attempt,
            failure,
            turn.message_id,
            now_ms - turn.round_started_ms,
            self._deadline_ms(consumer, event),
        )

    async def _guarded(
        self, consumer: Consumer, call: Any, context: Context, task: asyncio.Task[None]
    ) -> Failure | None:
        """Await a call of the app's code; None when it returned."""
        current.set(context)
        self._overdue_at[task] = time.monotonic() + consumer.handler_timeout_ms / 1000
        try:
            await call
            return None
        except LeaseLostError:
            return _LEASE_LOST
        except asyncio.CancelledError as error:
            if self._was_timed_out(task):
                late = f"the handler took longer than {consumer.handler_timeout_ms} ms"
                return classify(TimeoutError(late))
            if task.cancelling():
                raise
            return classify(error)  # the handler's own, not ours
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return classify(error, consumer.transient)
        finally:
            self._overdue_at[task] = _NEVER
            context.is_open = False
            self._was_timed_out(task)  # a handler may have swallowed it and returned

    def _was_timed_out(self, task: asyncio.Task[None]) -> bool:
        """Whether the watch cancelled this task; takes the cancellation back."""
        if task not in self._timed_out:
            return False
        self._timed_out.discard(task)
        task.uncancel()
        return not task.cancelling()

    # -- carrying out -----------------------------------------------------------------------

    async def _carry_out(
        self,
        lane: Lane,
        turn: Turn,
        decision: Decision,
        *,
        context: Context | None = None,
        event: Any = None,
        is_last_resort: bool = False,
    ) -> None:
        """Carry out the effects of a decision in order. All of them join the same commit.

        Args:
            lane: whose.
            turn: of the message.
            decision: of the core.
            context: what the handler staged, for a decision that applies it.
            event: what the message was read as; None where it could not be read.
            is_last_resort: whether a failing dead-letter hook is passed over.
        """
        staging, consumer = self._staging, lane.consumer
        name, key = consumer.name, lane.key or ""
        for effect in decision.effects:
            match effect:
                case ApplyWork():
                    assert context is not None
                    staging.merge(context.writes, context.emissions)
                case SaveInbox(outcome):
                    record = turn.record
                    row = inbox_row(
                        outcome,
                        self._clock.now_ms(),
                        turn.key,
                        record.topic,
                        record.partition,
                        record.offset,
                    )
                    staging.put(INBOX, turn.inbox_key, orjson.dumps(row))
                case Settle():
                    assert turn.slot is not None
                    turn.slot.settle()
                    lane.turns.popleft()
                    self.backlog -= 1
                case Count(what):
                    self._counters[f"{name}:{what}"] += 1
                case SaveMessage(sequence):
                    raw = _packed(turn.record)
                    row_key = message_key(name, key, sequence)
                    if len(row_key) + len(raw) > self._limits.row_bytes_max - ROW_OVERHEAD_BYTES:
                        await self._let_go(lane, turn, len(raw), decision, event)
                        return
                    staging.put(PARKED_MESSAGES, row_key, raw)
                case DropMessage(sequence):
                    staging.put(PARKED_MESSAGES, message_key(name, key, sequence), None)
                case SaveKey(parked):
                    staging.put(PARKED_KEYS, parked_key(name, key), orjson.dumps(parked.to_row()))
                    self._parked[name].add(key)
                    self._wake_at(name, key, resume(parked, 0))
                case DropKey():
                    staging.put(PARKED_KEYS, parked_key(name, key), None)
                    self._parked[name].discard(key)
                    self._schedule.drop((name, key))
                case DeadLetter():
                    failure = await self._write_dead_letter(lane, turn, effect, event)
                    if failure is not None and not is_last_resort:
                        failed = HookFailed(effect, failure, turn.message_id)
                        await self._carry_out(lane, turn, self._decide(lane, failed), event=event)
                        return
                case Attempt() | RetryInLane():
                    raise InvariantError(f"{effect} cannot join a commit.")
        lane.parked = decision.state
        self._finish()

    async def _let_go(
        self, lane: Lane, turn: Turn, size: int, decision: Decision, event: Any
    ) -> None:
        """A message that is too large to wait in the parking lot becomes a dead letter."""
        cause = (
            f"the message would have to wait, but its {size} bytes are more than "
            f"topics.row_bytes_max allows ({self._limits.row_bytes_max})"
        )
        attempts = 0
        if lane.parked is None and decision.state is not None:  # it was tried, and failed
            attempts = decision.state.attempts
            cause = f"{cause}; {decision.state.cause}"
        too_large = TooLarge(classify(RecordTooLargeError(cause)), attempts)
        await self._carry_out(
            lane, turn, self._decide(lane, too_large), event=event, is_last_resort=True
        )

    async def _write_dead_letter(
        self, lane: Lane, turn: Turn, letter: DeadLetter, event: Any
    ) -> Failure | None:
        """Run the hook, then stage the dead letter; the hook's failure when it had one."""
        consumer, failure = lane.consumer, None
        if consumer.on_dead_letter is not None and event is not None:
            task = asyncio.current_task()
            assert task is not None
            context = self._context(lane, turn, None)
            failure = await self._guarded(
                consumer, consumer.on_dead_letter(event, letter, context), context, task
            )
            if failure is None:
                self._staging.merge(context.writes, context.emissions)
            else:
                log.error(
                    "%s: the dead-letter hook failed for message %r of key %r: %s",
                    consumer.name, turn.message_id, turn.key, failure.cause,
                )  # fmt: skip
        if failure is None or letter.error_type == RecordTooLargeError.__name__:
            self._staging.emissions.append(
                dead_letter(
                    consumer.dead_letter_topic, turn.record, letter, self._limits.row_bytes_max
                )
            )
        return failure

    def _wake_at(self, consumer: str, key: str, due_ms: int | None) -> None:
        if due_ms is None:
            self._schedule.drop((consumer, key))
            return
        first_ms = self._schedule.next_ms()
        self._schedule.set((consumer, key), due_ms)
        if first_ms is None or due_ms < first_ms:
            self._wake_timer.set()

    def _finish(self) -> None:
        """One step more is ready to be committed."""
        self._finished += 1
        if self._finished == 1:
            self._wake_commit.set()
        if self._finished >= self._limits.commit_messages_max:
            self._is_full.set()
        if self._finished >= self._finished_max:
            self._is_drained.clear()

    # -- due keys, late handlers --------------------------------------------------------------

    async def _wake_due_keys(self) -> None:
        """Make a lane runnable when its parked key comes due; for ever."""
        while not self._is_closing:
            self._wake_timer.clear()
            due_ms = self._schedule.next_ms()
            wait_s = None if due_ms is None else (due_ms - self._clock.now_ms()) / 1000
            if wait_s is None or wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    # At most a minute: a clock that is set forward is noticed soon enough.
                    await asyncio.wait_for(self._wake_timer.wait(), min(wait_s or 60.0, 60.0))
                continue
            for name, key in self._schedule.pop_due(self._clock.now_ms()):
                lane = self._lane(self._by_name[name], key)
                lane.is_due = True
                self._queue.add(lane)
            self._queue.wake()
            await asyncio.sleep(0)

    async def _watch_handlers(self) -> None:
        """Cancel handler calls that take too long; for ever."""
        while not self._is_closing:
            await asyncio.sleep(WATCH_S)
            now_s = time.monotonic()
            for task, overdue_at in self._overdue_at.items():
                if overdue_at < now_s and task not in self._timed_out:
                    self._timed_out.add(task)
                    task.cancel()

    # -- committing ---------------------------------------------------------------------------

    async def _commit_when_done(self) -> None:
        """Commit as soon as something is finished, but at most once an interval; for ever."""
        interval_s = self._limits.commit_interval_ms / 1000
        while True:
            await self._wake_commit.wait()
            wait_s = self._last_commit_s + interval_s - time.monotonic()
            if wait_s > 0 and not self._is_full.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_full.wait(), wait_s)
            if self._is_closing:
                return  # the last commit is close()'s
            try:
                await self._commit()
            except Exception as error:
                self._break(error)
                return

    async def _commit(self) -> None:
        """One transaction for everything finished, then one write of the local store."""
        async with self._commit_lock:
            self._wake_commit.clear()
            self._is_full.clear()
            self._finished = 0
            self._is_drained.set()
            self._last_commit_s = time.monotonic()
            marks = {
                topic: mark
                for topic, watermark in self._watermarks.items()
                if (mark := watermark.advance()) is not None
            }
            batch = self._staging.take(marks)
            if batch.is_empty():
                self._staging.landed()
                return
            # Until all of it is done nobody knows what is committed: whatever ends this
            # early, this object commits nothing more, and a new one asks the broker.
            self._is_broken = True
            self._probe("before-transaction")
            positions = await self._journal.commit(batch, self._probe)
            self._probe("after-commit")
            self._store.apply(batch.writes, positions)
            self._probe("after-store")
            self._staging.landed()
            self._is_broken = False
            self._counters["commits"] += 1

    def _break(self, error: Exception) -> None:
        """Stop at once; the engine starts the partition again from what is committed."""
        if not self._is_closing:
            self._is_closing = True
            self._is_broken = True
            self._on_failure(self, error)


def _turn(
    record: Record, consumer: Consumer, outcome: Accepted | RejectedRecord, position: str
) -> Turn:
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
        None,
        key,
        message_id,
        inbox_key(consumer.name, inbox_id(message_id)),
        document,
        rejection,
        len(record.headers) > 1 and replay_id(record.headers) is not None,
    )


def _packed(record: Record) -> bytes:
    return pack(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.key,
        record.value,
        record.headers,
    )
