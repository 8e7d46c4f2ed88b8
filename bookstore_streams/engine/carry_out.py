"""Carries out what the core decided: stages rows, messages, events and dead letters, in order."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import orjson

from bookstore_streams.core.classify import Failure, classify
from bookstore_streams.core.decide import (
    Decision,
    Event,
    HookFailed,
    Rejected,
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
from bookstore_streams.core.envelope import inbox_id
from bookstore_streams.core.inbox import Outcome, inbox_row
from bookstore_streams.core.parking import ParkedKey, message_key, parked_key
from bookstore_streams.core.record import pack
from bookstore_streams.errors import InvariantError, RecordTooLargeError
from bookstore_streams.ports import Clock, Record

from .calls import Calls, Parsed
from .dead_letters import dead_letter
from .lanes import Lane, Turn
from .limits import Limits
from .parking_lot import ParkingLot
from .staging import Staging
from .tables import INBOX, PARKED_KEYS, PARKED_MESSAGES
from .unit_of_work import Context

log = logging.getLogger(__name__)

# Room in a record for what the batch and the transaction add to a row.
ROW_OVERHEAD_BYTES = 1_024
# An inbox row is for people to read; a key may be as large as a record.
SHOWN_KEY_CHARACTERS_MAX = 200


class CarryOut:
    """The effects of one partition's decisions. All of a decision's effects join one commit."""

    def __init__(
        self,
        staging: Staging,
        calls: Calls,
        lot: ParkingLot,
        *,
        limits: Limits,
        clock: Clock,
        counters: Counter[str],
    ) -> None:
        self._staging = staging
        self._calls = calls
        self._lot = lot
        self._limits = limits
        self._clock = clock
        self._counters = counters

    def decide(self, lane: Lane, event: Event) -> Decision:
        """Ask the core."""
        return decide(lane.parked, event, self._clock.now_ms(), lane.consumer.policy)

    async def run(
        self,
        lane: Lane,
        turn: Turn,
        decision: Decision,
        *,
        context: Context | None = None,
        event: Any = None,
        is_last_resort: bool = False,
    ) -> None:
        """Carry out the effects of a decision in order, then let the lane have its new state.

        Args:
            lane: whose.
            turn: of the message.
            decision: of the core.
            context: what the handler staged, for a decision that applies it.
            event: what the message was read as; None where it could not be read.
            is_last_resort: whether a failing dead-letter hook is passed over.
        """
        staging = self._staging
        name, key = lane.consumer.name, lane.key or ""
        for effect in decision.effects:
            match effect:
                case ApplyWork():
                    assert context is not None
                    staging.merge(context.writes, context.emissions)
                case SaveInbox():
                    self._save_inbox(turn, effect.outcome, self._clock.now_ms())
                case Settle():
                    assert turn.slot is not None
                    turn.slot.settle()
                    lane.turns.popleft()
                case Count():
                    self._counters[f"{name}:{effect.name}"] += 1
                case SaveMessage():
                    raw = _packed(turn.record)
                    row_key = message_key(name, key, effect.sequence)
                    if len(row_key) + len(raw) > self._limits.row_bytes_max - ROW_OVERHEAD_BYTES:
                        await self._let_go(lane, turn, len(raw), decision, event)
                        return
                    staging.put(PARKED_MESSAGES, row_key, raw)
                case DropMessage():
                    staging.put(PARKED_MESSAGES, message_key(name, key, effect.sequence), None)
                case SaveKey():
                    row = orjson.dumps(effect.key.to_row())
                    staging.put(PARKED_KEYS, parked_key(name, key), row)
                    self._lot.keep(name, key, resume(effect.key, 0))
                case DropKey():
                    staging.put(PARKED_KEYS, parked_key(name, key), None)
                    self._lot.drop(name, key)
                case DeadLetter():
                    failure = await self._dead_letter(lane, turn, effect, event, is_last_resort)
                    if failure is not None:
                        failed = HookFailed(effect, failure, inbox_id(turn.message_id))
                        await self.run(lane, turn, self.decide(lane, failed), event=event)
                        return
                case Attempt() | RetryInLane():
                    raise InvariantError(f"{effect} cannot join a commit.")
        lane.parked = decision.state

    def applied(self, turn: Turn, context: Context, now_ms: int) -> None:
        """Carry out `APPLIED`: what was decided of a message that flows and was handled."""
        staging, slot = self._staging, turn.slot
        assert slot is not None
        staging.merge(context.writes, context.emissions)
        self._save_inbox(turn, Outcome.APPLIED, now_ms)
        slot.settle()

    def load(self, consumer: str, key: str) -> ParkedKey | None:
        """The state of a parked key, with everything finished."""
        raw = self._staging.get(PARKED_KEYS, parked_key(consumer, key))
        return None if raw is None else ParkedKey.from_row(orjson.loads(raw))

    def _save_inbox(self, turn: Turn, outcome: Outcome, now_ms: int) -> None:
        record, key = turn.record, turn.key
        if key is not None:
            key = key[:SHOWN_KEY_CHARACTERS_MAX]
        row = inbox_row(outcome, now_ms, key, record.topic, record.partition, record.offset)
        self._staging.rows[INBOX][turn.inbox_key] = orjson.dumps(row)

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
        if event is None:
            parsed = self._calls.parse(lane.consumer, turn)
            if isinstance(parsed, Parsed):
                event = parsed.event
            elif isinstance(parsed, Rejected):  # it is broken, however large it is
                broken = parsed.rejection
                failure = Failure(False, broken.error_type, broken.error_message)
                too_large = TooLarge(failure, attempts, broken.reason)
        await self.run(lane, turn, self.decide(lane, too_large), event=event, is_last_resort=True)

    async def _dead_letter(
        self, lane: Lane, turn: Turn, letter: DeadLetter, event: Any, is_last_resort: bool
    ) -> Failure | None:
        """Run the hook, then stage the dead letter; the hook's failure where it stops that."""
        consumer = lane.consumer
        if consumer.on_dead_letter is not None and event is not None:
            failure, context = await self._calls.dead_letter_hook(consumer, turn, event, letter)
            if failure is None:
                self._staging.merge(context.writes, context.emissions)
            else:
                log.error(
                    "%s: the dead-letter hook failed for message %r of key %r: %s",
                    consumer.name,
                    turn.message_id,
                    turn.key,
                    failure.cause,
                )
                if not is_last_resort:
                    return failure
        self._staging.emissions.append(
            dead_letter(consumer.dead_letter_topic, turn.record, letter, self._limits.row_bytes_max)
        )
        return None


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
