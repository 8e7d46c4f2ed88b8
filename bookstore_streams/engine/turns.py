"""How a message has its turn: at once where nothing is in its way, else in its key's lane.

Asks the core at each step and has the answer carried out; no decision about retries, order
or duplicates is taken here. Everything a turn does up to its first wait happens in one go:
nothing else of the partition runs in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import orjson

from bookstore_streams.core.decide import (
    APPLIED,
    RUN,
    Arrived,
    Due,
    Event,
    Succeeded,
    decide,
    resume,
)
from bookstore_streams.core.effects import Attempt, RetryInLane
from bookstore_streams.core.envelope import Accepted, Ignored, Reason, accept, inbox_id, replay_id
from bookstore_streams.core.envelope import Rejected as RejectedRecord
from bookstore_streams.core.inbox import Outcome, inbox_key, is_newer
from bookstore_streams.core.parking import message_key
from bookstore_streams.core.record import unpack
from bookstore_streams.core.watermark import Slot
from bookstore_streams.errors import StoreError
from bookstore_streams.ports import Clock, Record

from .calls import Begun, Calls, Parsed
from .carry_out import CarryOut
from .commit import Committer
from .consumer import Consumer
from .lanes import Lane, RunQueue, Turn, position_of
from .limits import Limits
from .parking_lot import ParkingLot
from .staging import Staging
from .tables import INBOX, PARKED_MESSAGES
from .unit_of_work import Context

# Lanes at which no more due keys are taken: each holds the state of its key in memory.
LANES_MAX = 2_000

_ARRIVED = Arrived()
_FIRST: Attempt = RUN.effects[0]  # type: ignore[assignment]
_FIRST_SUCCEEDED = Succeeded(_FIRST)


class Turns:
    """The turns of one partition's messages, and the lanes of the keys that wait."""

    def __init__(
        self,
        consumers: Iterable[Consumer],
        queue: RunQueue,
        lot: ParkingLot,
        staging: Staging,
        calls: Calls,
        carry_out: CarryOut,
        committer: Committer,
        *,
        limits: Limits,
        clock: Clock,
        counters: Counter[str],
    ) -> None:
        self._consumers = {consumer.name: consumer for consumer in consumers}
        self._lanes: dict[str, dict[str, Lane]] = {name: {} for name in self._consumers}
        # Inbox keys whose first delivery is being handled, and lanes with another copy of it.
        self._in_flight: dict[bytes, list[Lane]] = {}
        self._queue = queue
        self._lot = lot
        self._staging = staging
        self._calls = calls
        self._carry_out = carry_out
        self._committer = committer
        self._inbox_retention_ms = limits.inbox_retention_ms
        self._clock = clock
        self._counters = counters

    def is_running(self, consumer: str, key: str) -> bool:
        """Whether a parked key is being tried right now."""
        lane = self._lanes.get(consumer, {}).get(key)
        return lane is not None and lane.head is not None

    def arrive(self, consumer: Consumer, record: Record, slot: Slot) -> Lane | None:
        """A record's turn has come.

        Returns:
            The lane that has to `run` for it, at once; None when it is done, or waits in a
            lane that runs already.
        """
        turn = self._turn(consumer, record, slot)
        if isinstance(turn, Ignored):
            self._counters[f"{consumer.name}:ignored:{turn.cause}"] += 1
            slot.settle()
            self._committer.finish()
            return None
        key = turn.key
        if key is None:  # no key, no order: a lane that nobody else joins
            lane = Lane(consumer, None, None)
        else:
            joined = self._lanes[consumer.name].get(key)
            if joined is None:
                if not self._lot.holds(consumer.name, key) and self._is_done_at_once(
                    consumer, turn
                ):
                    return None
                joined = self._new_lane(consumer, key)
            lane = joined
        lane.turns.append(turn)
        if lane.is_busy:
            return None
        lane.is_busy = True
        return lane

    def has_room(self) -> bool:
        """Whether more due keys can be taken."""
        return sum(map(len, self._lanes.values())) < LANES_MAX

    def on_due(self, keys: Iterable[tuple[str, str]]) -> None:
        """The time of parked keys has come: (consumer, key)."""
        for name, key in keys:
            lane = self._lanes[name].get(key) or self._new_lane(self._consumers[name], key)
            lane.is_due = True
            self._queue.add(lane)
        self._queue.wake()

    async def run(self, lane: Lane) -> None:
        """Take one step in a lane, and let it be where there is nothing more to do in it."""
        if await self._step(lane):
            return
        lane.is_busy = False
        if lane.turns or lane.is_due:
            self._queue.add(lane)  # to the back: a long lane must not stall the watermark
        elif lane.key is not None:
            self._lanes[lane.consumer.name].pop(lane.key, None)

    def _new_lane(self, consumer: Consumer, key: str) -> Lane:
        name = consumer.name
        parked = self._carry_out.load(name, key) if self._lot.holds(name, key) else None
        lane = self._lanes[name][key] = Lane(consumer, key, parked)
        return lane

    def _is_done_at_once(self, consumer: Consumer, turn: Turn) -> bool:
        """Handle a message of a key that flows; False leaves it, or the rest, to a lane."""
        if turn.rejection is not None or turn.inbox_key in self._in_flight:
            return False
        calls, now_ms = self._calls, self._clock.now_ms()
        if decide(None, self._seen(turn), now_ms, consumer.policy) is not RUN:
            return False
        parsed = calls.parse(consumer, turn)
        if not isinstance(parsed, Parsed) or not calls.has_lease():
            return False
        begun = calls.begin(consumer, turn, _FIRST, parsed, now_ms)
        if isinstance(begun, Context):
            if decide(None, _FIRST_SUCCEEDED, now_ms, consumer.policy) is APPLIED:
                self._carry_out.applied(turn, begun, now_ms)
                self._committer.finish()
                return True
            begun = Begun(begun, None, None, None, parsed)
        turn.attempt, turn.begun, turn.round_started_ms = _FIRST, begun, now_ms
        self._in_flight[turn.inbox_key] = []
        return False

    def _turn(self, consumer: Consumer, record: Record, slot: Slot | None) -> Turn | Ignored:
        headers = record.headers
        outcome = accept(
            record.value,
            record.key,
            headers,
            consumer.known_types,
            position_of(record) if consumer.missing_id_from_offset else None,
        )
        key: str | None
        rejection: RejectedRecord | None = None
        if isinstance(outcome, Accepted):
            key, message_id, document = outcome
        elif isinstance(outcome, Ignored):
            return outcome
        else:
            # Without an id its position stands in, so that it is not dead-lettered twice.
            key, message_id = outcome.key, outcome.message_id or position_of(record)
            document, rejection = None, outcome
        return Turn(
            record,
            slot,
            key,
            message_id,
            inbox_key(consumer.name, inbox_id(message_id)),
            document,
            rejection,
            len(headers) > 1 and replay_id(headers) is not None,
        )

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
                parsed = self._calls.parse(lane.consumer, turn)
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
        calls, consumer = self._calls, lane.consumer
        begun, turn.begun = turn.begun, None
        if begun is not None and begun.parsed is not None:
            parsed: Parsed | Event = begun.parsed
        else:
            parsed = calls.parse(consumer, turn, is_repeated=attempt.in_round > 1)
        event = context = None
        if isinstance(parsed, Parsed):
            event = parsed.event
            outcome, context = await calls.attempt(
                consumer, turn, attempt, parsed, is_parked=lane.parked is not None, begun=begun
            )
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
        turn = self._turn(consumer, record, None)
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
        return Turn(record, None, lane.key, message_id, identity, None, rejected, False)

    def _seen(self, turn: Turn) -> Arrived:
        """The message's arrival, with what the inbox knows of it."""
        raw = self._staging.get(INBOX, turn.inbox_key)
        if raw is None:
            return _ARRIVED
        row = orjson.loads(raw)
        kept_until_ms = row["at_ms"] + self._inbox_retention_ms
        if row["outcome"] != Outcome.PARKED and kept_until_ms < self._clock.now_ms():
            return _ARRIVED
        record = turn.record
        is_replay = turn.is_replay and is_newer(row, record.topic, record.partition, record.offset)
        return Arrived(row["outcome"], is_replay)
