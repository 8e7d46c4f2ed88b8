"""What happens to a message: the one place that decides; a function of state, event and time.

State is that of one (consumer, key): a `ParkedKey`, or None while the key flows. Every
event is one step of one message; the shell brings the steps of a key one at a time.

    flows  -- Arrived ------------> attempt
    flows  -- Failed, transient --> parked            (or an extra attempt in the lane)
    flows  -- Failed, permanent --> dead letter, flows
    parked -- Arrived ------------> follower appended, never attempted
    parked -- Due ----------------> attempt of the head
    parked -- Succeeded ----------> next follower is due at once, or flows when none is left
    parked -- Failed, transient --> waits again, longer
    parked -- Failed, permanent --> dead letter, next follower is due at once
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .backoff import backoff_ms, immediate_ms
from .classify import Failure
from .deadline import is_past
from .effects import (
    ApplyWork,
    Attempt,
    Count,
    DeadLetter,
    DropKey,
    DropMessage,
    Effect,
    RetryInLane,
    SaveInbox,
    SaveKey,
    SaveMessage,
    Settle,
)
from .envelope import Ignored
from .envelope import Rejected as RejectedRecord
from .inbox import Outcome, is_duplicate
from .parking import Attempted, Doom, KeyState, ParkedKey
from .policy import Policy


@dataclass(frozen=True, slots=True)
class Arrived:
    """A record came from the source, and every earlier one of its key has been settled.

    Attributes:
        known: outcome in the inbox row of (consumer, message id), None without a row.
        is_replay: whether it carries a `replay-id`.
    """

    known: str | None = None
    is_replay: bool = False


@dataclass(frozen=True, slots=True)
class Due:
    """The due time of a parked key came.

    Attributes:
        known: outcome in the inbox row of the head, None without a row.
    """

    known: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message whose turn it is cannot be given to a handler: its bytes or schema are broken."""

    rejection: RejectedRecord
    message_id: str


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised.

    Attributes:
        attempt: the effect that ordered the call.
        failure: the classified exception.
        message_id: of the message tried.
        elapsed_ms: since the first attempt of this round began.
        deadline_ms: epoch ms after which the message is not attempted again, None for never.
    """

    attempt: Attempt
    failure: Failure
    message_id: str
    elapsed_ms: int = 0
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A parked head came due, but its business deadline went by while it could not be tried.

    Attributes:
        message_id: of the head.
        attempts: calls of the handler it had.
    """

    message_id: str
    attempts: int


@dataclass(frozen=True, slots=True)
class HookFailed:
    """The consumer's dead-letter hook raised, so the dead letter was not written."""

    dead_letter: DeadLetter
    failure: Failure
    message_id: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The message would have to be parked, but is larger than the broker takes as a row.

    Attributes:
        failure: says how large it is, or what else was wrong with it before.
        attempts: calls of the handler it had.
        reason: of the dead letter.
    """

    failure: Failure
    attempts: int
    reason: str = "permanent"


Event = (
    Arrived | Ignored | Due | Rejected | Succeeded | Failed | DeadlinePassed | HookFailed | TooLarge
)


@dataclass(frozen=True, slots=True)
class Decision:
    """The state after an event, and what to do, in order."""

    state: ParkedKey | None
    effects: tuple[Effect, ...]


# Most messages arrive, succeed, and are gone: these two decisions are made once, and a shell
# may know them by identity.
RUN = Decision(None, (Attempt(number=1, in_round=1, rounds=0),))
APPLIED = Decision(None, (ApplyWork(), SaveInbox(Outcome.APPLIED), Settle()))


def decide(state: ParkedKey | None, event: Event, now_ms: int, policy: Policy) -> Decision:
    """The next state of a key and the effects that lead to it; total, pure, deterministic.

    Args:
        state: of the key now; None while it flows.
        event: what happened.
        now_ms: epoch ms.
        policy: of the consumer.
    """
    match event:
        case Arrived():
            return _on_arrived(state, event)
        case Succeeded():
            return _on_succeeded(state, now_ms)
        case Failed():
            return _on_failed(state, event, now_ms, policy)
        case Due():
            return _on_due(state, event, now_ms)
        case Ignored():
            return Decision(state, (Count(f"ignored:{event.cause}"), Settle()))
        case Rejected():
            attempts = 0 if state is None else state.attempts
            letter = DeadLetter(
                event.rejection.reason,
                event.rejection.error_type,
                event.rejection.error_message,
                attempts,
            )
            return _give_up(state, letter, event.message_id, now_ms)
        case DeadlinePassed():
            cause = "" if state is None else state.cause
            letter = DeadLetter("deadline-passed", "DeadlinePassed", cause, event.attempts)
            return _give_up(state, letter, event.message_id, now_ms)
        case HookFailed():
            return _on_hook_failed(state, event, now_ms, policy)
        case TooLarge():
            # It cannot wait, so it leaves the queue; what waits of its key is not touched.
            failure = event.failure
            letter = DeadLetter(
                event.reason, failure.error_type, failure.error_message, event.attempts
            )
            return Decision(state, _dead_letter(letter))


def resume(state: ParkedKey, now_ms: int) -> int | None:
    """When a key found parked after a restart is due, epoch ms; None while it is held.

    A due time that went by while nobody ran is due now: it is neither lost nor restarted.
    """
    return None if state.state is KeyState.HELD else max(state.due_ms, now_ms)


def _on_arrived(state: ParkedKey | None, event: Arrived) -> Decision:
    if is_duplicate(event.known, event.is_replay):
        return Decision(state, (Count("duplicates"), Settle()))
    if state is None:
        return RUN
    return _park_behind(state)


def _park_behind(state: ParkedKey) -> Decision:
    parked = state.with_follower()
    return Decision(
        parked,
        (
            SaveMessage(state.tail),
            SaveKey(parked),
            SaveInbox(Outcome.PARKED),
            Count("parked"),
            Settle(),
        ),
    )


def _on_due(state: ParkedKey | None, event: Due, now_ms: int) -> Decision:
    if state is None or state.state is KeyState.HELD or state.due_ms > now_ms:
        return Decision(state, ())  # a wake-up that something else has overtaken
    if event.known is not None and event.known != Outcome.PARKED:
        # A copy that was parked because the inbox had forgotten the first, which is done now.
        left = state.without_head(now_ms)
        return Decision(left, (*_drop_head(state, left), Count("duplicates"), Count("unparked")))
    if state.doom is not None:
        doom = state.doom
        letter = DeadLetter(doom.reason, doom.error_type, doom.error_message, state.attempts)
        return _settle_head(state, letter, now_ms)
    return Decision(state, (Attempt(state.attempts + 1, 1, state.rounds),))


def _on_succeeded(state: ParkedKey | None, now_ms: int) -> Decision:
    if state is None:
        return APPLIED
    left = state.without_head(now_ms)
    return Decision(
        left,
        (
            ApplyWork(),
            SaveInbox(Outcome.APPLIED),
            *_drop_head(state, left),
            Count("unparked"),
        ),
    )


def _drop_head(state: ParkedKey, left: ParkedKey | None) -> tuple[Effect, ...]:
    return (
        DropMessage(state.head),
        DropKey() if left is None else SaveKey(left),
    )


def _on_failed(state: ParkedKey | None, event: Failed, now_ms: int, policy: Policy) -> Decision:
    attempt, failure = event.attempt, event.failure
    failed = Attempted(now_ms, attempt.number, event.message_id, failure.cause)
    seen = None if state is None else state.with_failure(failed)
    if not failure.is_transient:
        return _give_up(seen, _letter("permanent", event), event.message_id, now_ms)
    if attempt.number >= policy.attempts_max:
        return _give_up(seen, _letter("attempts-exhausted", event), event.message_id, now_ms)

    soon = None
    if not failure.retry_after_ms:  # who asks for a wait is not asked again at once
        soon = immediate_ms(policy, attempt.in_round, event.elapsed_ms)
    if soon is not None:
        if is_past(event.deadline_ms, now_ms + soon):
            return _give_up(seen, _letter("deadline-passed", event), event.message_id, now_ms)
        again = Attempt(attempt.number + 1, attempt.in_round + 1, attempt.rounds)
        return Decision(state, (Count("retries"), RetryInLane(soon, again)))

    rounds = attempt.rounds + 1
    due_ms = now_ms + backoff_ms(policy, event.message_id, rounds, failure.retry_after_ms)
    if is_past(event.deadline_ms, due_ms):
        return _give_up(seen, _letter("deadline-passed", event), event.message_id, now_ms)
    if seen is not None:
        waiting = replace(seen, attempts=attempt.number, rounds=rounds, due_ms=due_ms)
        return Decision(waiting, (Count("retries"), SaveKey(waiting)))
    parked = _newly_parked(failed, rounds, due_ms)
    return Decision(parked, _park_first(parked))


def _newly_parked(failed: Attempted, rounds: int, due_ms: int) -> ParkedKey:
    """The key that a flowing message becomes the head of by this failure."""
    return ParkedKey(
        head=0,
        tail=1,
        attempts=failed.attempt,
        rounds=rounds,
        due_ms=due_ms,
        cause=failed.cause,
        oldest_ms=failed.at_ms,
        history=(failed,),
    )


def _park_first(parked: ParkedKey) -> tuple[Effect, ...]:
    return (
        SaveMessage(parked.head),
        SaveKey(parked),
        SaveInbox(Outcome.PARKED),
        Count("parked"),
        Settle(),
    )


def _letter(reason: str, event: Failed) -> DeadLetter:
    failure = event.failure
    return DeadLetter(reason, failure.error_type, failure.error_message, event.attempt.number)


def _give_up(state: ParkedKey | None, letter: DeadLetter, message_id: str, now_ms: int) -> Decision:
    """Dead-letter the message whose turn it is; later ones of the key go on."""
    if state is not None:
        return _settle_head(state, letter, now_ms)
    return Decision(None, _dead_letter(letter))


def _dead_letter(letter: DeadLetter) -> tuple[Effect, ...]:
    return (
        letter,
        SaveInbox(Outcome.DEAD_LETTERED),
        Count(f"dead_letters:{letter.reason}"),
        Settle(),
    )


def _settle_head(state: ParkedKey, letter: DeadLetter, now_ms: int) -> Decision:
    left = state.without_head(now_ms)
    return Decision(
        left,
        (
            letter,
            SaveInbox(Outcome.DEAD_LETTERED),
            *_drop_head(state, left),
            Count(f"dead_letters:{letter.reason}"),
            Count("unparked"),
        ),
    )


def _on_hook_failed(
    state: ParkedKey | None, event: HookFailed, now_ms: int, policy: Policy
) -> Decision:
    """Keep the message where it is not lost: parked, with its verdict, until the hook works."""
    letter = event.dead_letter
    cause = f"dead-letter hook failed: {event.failure.cause}"
    failed = Attempted(now_ms, letter.attempts, event.message_id, cause)
    rounds = 1 if state is None else state.rounds + 1
    due_ms = now_ms + backoff_ms(policy, event.message_id, rounds, event.failure.retry_after_ms)
    doom = Doom(letter.reason, letter.error_type, letter.error_message)
    if state is not None:
        waiting = replace(
            state.with_failure(failed),
            attempts=letter.attempts,
            rounds=rounds,
            due_ms=due_ms,
            doom=doom,
        )
        return Decision(waiting, (Count("dead_letter_hook_failures"), SaveKey(waiting)))
    parked = replace(_newly_parked(failed, rounds, due_ms), doom=doom)
    return Decision(parked, (Count("dead_letter_hook_failures"), *_park_first(parked)))
