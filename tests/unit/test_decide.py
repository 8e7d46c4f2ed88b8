"""Every decision pinned: one example a row, with the whole state and all effects in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookstore_streams.core.classify import Failure
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
    Effect,
    RetryInLane,
    SaveInbox,
    SaveKey,
    SaveMessage,
    Settle,
)
from bookstore_streams.core.envelope import Ignored, Reason
from bookstore_streams.core.envelope import Rejected as RejectedRecord
from bookstore_streams.core.inbox import Outcome
from bookstore_streams.core.parking import HISTORY_MAX, Attempted, Doom, KeyState, ParkedKey
from bookstore_streams.core.policy import Jitter, Policy

NOW = 1_000_000
POLICY = Policy(attempts_max=5, backoff_ms_base=2_000, jitter=Jitter.NONE)
IMMEDIATE = replace(POLICY, immediate_attempts=2)

DOWN = Failure(True, "TransientError", "provider down")
SLOW_DOWN = Failure(True, "TransientError", "slow down", retry_after_ms=9_000)
NEVER = Failure(False, "PermanentError", "card expired")

FIRST = Attempt(number=1, in_round=1, rounds=0)

#: Messages 4 to 6 wait; the head has failed twice in two rounds, and is due now.
PARKED = ParkedKey(
    head=4,
    tail=7,
    attempts=2,
    rounds=2,
    due_ms=NOW,
    cause="TransientError: before",
    oldest_ms=NOW - 6_000,
    history=(Attempted(NOW - 4_000, 2, "m4", "TransientError: before"),),
)
ALONE = replace(PARKED, tail=5)
NEXT = Attempt(number=3, in_round=1, rounds=2)
DOOMED = replace(PARKED, doom=Doom("permanent", "PermanentError", "card expired"))
HELD = replace(PARKED, state=KeyState.HELD)

AFTER_HEAD = replace(PARKED, head=5, attempts=0, rounds=0, due_ms=NOW)


def failed(
    attempt: Attempt, failure: Failure, elapsed_ms: int = 0, deadline_ms: int | None = None
) -> Failed:
    return Failed(attempt, failure, "m4", elapsed_ms, deadline_ms)


def letter(reason: str, failure: Failure, attempts: int) -> DeadLetter:
    return DeadLetter(reason, failure.error_type, failure.error_message, attempts)


def given_up(dead: DeadLetter) -> tuple[Effect, ...]:
    """Effects for a message from the source."""
    return (
        dead,
        SaveInbox(Outcome.DEAD_LETTERED),
        Count(f"dead_letters:{dead.reason}"),
        Settle(),
    )


def head_given_up(dead: DeadLetter, left: ParkedKey | None, head: int = 4) -> tuple[Effect, ...]:
    """Effects for a message from the parking lot: its offset is settled already."""
    return (
        dead,
        SaveInbox(Outcome.DEAD_LETTERED),
        DropMessage(head),
        DropKey() if left is None else SaveKey(left),
        Count(f"dead_letters:{dead.reason}"),
        Count("unparked"),
    )


def noted(state: ParkedKey, attempt: int, cause: str) -> ParkedKey:
    """The state with one more failed attempt in its history."""
    entry = Attempted(NOW, attempt, "m4", cause)
    return replace(state, cause=cause, history=(*state.history, entry))


# -- arrivals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [None, PARKED, HELD, DOOMED], ids=["flows", "p", "held", "doom"])
@pytest.mark.parametrize(
    ("known", "is_replay"),
    [
        ("applied", False),
        ("applied", True),
        ("parked", False),
        ("parked", True),
        ("dead-lettered", False),
    ],
)
def test_a_known_message_is_counted_and_settled_and_changes_nothing(
    state: ParkedKey | None, known: str, is_replay: bool
) -> None:
    decision = decide(state, Arrived(known, is_replay), NOW, POLICY)
    assert decision == Decision(state, (Count("duplicates"), Settle()))


@pytest.mark.parametrize("event", [Arrived(), Arrived("dead-lettered", is_replay=True)])
def test_a_new_or_replayed_message_of_a_flowing_key_is_attempted(event: Arrived) -> None:
    assert decide(None, event, NOW, POLICY) == Decision(None, (FIRST,))


@pytest.mark.parametrize("event", [Arrived(), Arrived("dead-lettered", is_replay=True)])
@pytest.mark.parametrize("state", [PARKED, HELD, DOOMED], ids=["waiting", "held", "doomed"])
def test_a_message_of_a_parked_key_takes_its_place_at_the_end_and_is_not_attempted(
    state: ParkedKey, event: Arrived
) -> None:
    longer = replace(state, tail=8)
    assert decide(state, event, NOW, POLICY) == Decision(
        longer,
        (SaveMessage(7), SaveKey(longer), SaveInbox(Outcome.PARKED), Count("parked"), Settle()),
    )


@pytest.mark.parametrize("cause", ["tombstone", "unknown-type"])
@pytest.mark.parametrize("state", [None, PARKED], ids=["flows", "parked"])
def test_what_the_consumer_does_not_want_is_counted_and_settled(
    state: ParkedKey | None, cause: str
) -> None:
    event = Ignored(cause)  # type: ignore[arg-type]
    decision = decide(state, event, NOW, POLICY)
    assert decision == Decision(state, (Count(f"ignored:{cause}"), Settle()))


@pytest.mark.parametrize("reason", [Reason.UNDECODABLE, Reason.MISSING_KEY, Reason.PERMANENT])
def test_a_broken_record_is_dead_lettered_without_an_attempt(reason: Reason) -> None:
    event = Rejected(RejectedRecord(reason, "DecodeError", "no JSON", "A", "m1"), "m1")
    dead = DeadLetter(reason, "DecodeError", "no JSON", attempts=0)
    assert decide(None, event, NOW, POLICY) == Decision(None, given_up(dead))


def test_a_broken_head_is_dead_lettered_with_the_attempts_it_had() -> None:
    event = Rejected(RejectedRecord(Reason.PERMANENT, "PermanentError", "no", "A", "m4"), "m4")
    dead = DeadLetter("permanent", "PermanentError", "no", attempts=2)
    assert decide(PARKED, event, NOW, POLICY) == Decision(
        AFTER_HEAD, head_given_up(dead, AFTER_HEAD)
    )


# -- success ----------------------------------------------------------------------------------


def test_a_success_of_a_flowing_key_applies_the_work_with_the_inbox_row_and_settles() -> None:
    assert decide(None, Succeeded(FIRST), NOW, POLICY) == Decision(
        None, (ApplyWork(), SaveInbox(Outcome.APPLIED), Settle())
    )


def test_a_success_of_a_head_makes_its_first_follower_due_at_once() -> None:
    assert decide(PARKED, Succeeded(NEXT), NOW, POLICY) == Decision(
        AFTER_HEAD,
        (
            ApplyWork(),
            SaveInbox(Outcome.APPLIED),
            DropMessage(4),
            SaveKey(AFTER_HEAD),
            Count("unparked"),
        ),
    )


def test_a_success_of_the_last_message_lets_the_key_flow() -> None:
    assert decide(ALONE, Succeeded(NEXT), NOW, POLICY) == Decision(
        None,
        (
            ApplyWork(),
            SaveInbox(Outcome.APPLIED),
            DropMessage(4),
            DropKey(),
            Count("unparked"),
        ),
    )


# -- transient failures -----------------------------------------------------------------------


def test_a_first_transient_failure_parks_the_key() -> None:
    parked = ParkedKey(
        head=0,
        tail=1,
        attempts=1,
        rounds=1,
        due_ms=NOW + 2_000,
        cause="TransientError: provider down",
        oldest_ms=NOW,
        history=(Attempted(NOW, 1, "m4", "TransientError: provider down"),),
    )
    assert decide(None, failed(FIRST, DOWN), NOW, POLICY) == Decision(
        parked,
        (SaveMessage(0), SaveKey(parked), SaveInbox(Outcome.PARKED), Count("parked"), Settle()),
    )


def test_a_head_that_fails_again_waits_longer() -> None:
    waiting = noted(
        replace(PARKED, attempts=3, rounds=3, due_ms=NOW + 8_000),
        3,
        "TransientError: provider down",
    )
    assert decide(PARKED, failed(NEXT, DOWN), NOW, POLICY) == Decision(
        waiting, (Count("retries"), SaveKey(waiting))
    )


@pytest.mark.parametrize(
    ("rounds", "retry_after_ms", "wait_ms"),
    [(0, None, 2_000), (0, 1_999, 2_000), (0, 2_001, 2_001), (1, 3_000, 4_000), (1, 0, 4_000)],
)
def test_the_longer_of_backoff_and_retry_after_is_waited(
    rounds: int, retry_after_ms: int | None, wait_ms: int
) -> None:
    failure = replace(DOWN, retry_after_ms=retry_after_ms)
    state = None if rounds == 0 else replace(PARKED, rounds=rounds, attempts=rounds)
    event = failed(Attempt(rounds + 1, 1, rounds), failure)
    after = decide(state, event, NOW, POLICY).state
    assert after is not None
    assert after.due_ms == NOW + wait_ms


@pytest.mark.parametrize("state", [None, PARKED], ids=["flows", "parked"])
def test_an_immediate_attempt_comes_before_parking_and_keeps_the_state(
    state: ParkedKey | None,
) -> None:
    first = FIRST if state is None else NEXT
    second = Attempt(first.number + 1, 2, first.rounds)
    assert decide(state, failed(first, DOWN), NOW, IMMEDIATE) == Decision(
        state, (Count("retries"), RetryInLane(50, second))
    )
    third = Attempt(first.number + 2, 3, first.rounds)
    assert decide(state, failed(second, DOWN, 50), NOW, IMMEDIATE) == Decision(
        state, (Count("retries"), RetryInLane(100, third))
    )
    spent = decide(state, failed(third, DOWN, 150), NOW, replace(IMMEDIATE, attempts_max=9))
    assert spent.state is not None
    assert spent.state.attempts == third.number
    assert spent.state.rounds == first.rounds + 1


def test_who_asks_for_a_wait_is_not_asked_again_at_once() -> None:
    after = decide(None, failed(FIRST, SLOW_DOWN), NOW, IMMEDIATE).state
    assert after is not None
    assert after.due_ms == NOW + 9_000


def test_immediate_attempts_end_with_their_time() -> None:
    policy = replace(IMMEDIATE, immediate_total_ms_max=149)
    second = Attempt(2, 2, 0)
    assert decide(None, failed(second, DOWN, 50), NOW, policy).state is not None
    assert decide(None, failed(second, DOWN, 49), NOW, policy).state is None


# -- giving up --------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [POLICY, IMMEDIATE], ids=["plain", "immediate"])
def test_a_permanent_failure_is_dead_lettered_at_once(policy: Policy) -> None:
    dead = letter("permanent", NEVER, 1)
    assert decide(None, failed(FIRST, NEVER), NOW, policy) == Decision(None, given_up(dead))


def test_a_head_that_fails_for_good_lets_its_followers_go_on() -> None:
    left = replace(noted(PARKED, 3, NEVER.cause), head=5, attempts=0, rounds=0)
    assert decide(PARKED, failed(NEXT, NEVER), NOW, POLICY) == Decision(
        left, head_given_up(letter("permanent", NEVER, 3), left)
    )
    assert decide(ALONE, failed(NEXT, NEVER), NOW, POLICY) == Decision(
        None, head_given_up(letter("permanent", NEVER, 3), None)
    )


@pytest.mark.parametrize(("number", "is_last"), [(4, False), (5, True), (6, True)])
@pytest.mark.parametrize("policy", [POLICY, IMMEDIATE], ids=["plain", "immediate"])
def test_the_last_attempt_allowed_is_the_last(policy: Policy, number: int, is_last: bool) -> None:
    event = failed(Attempt(number, 1, number - 1), DOWN)
    (first, *_) = decide(ALONE, event, NOW, policy).effects
    expected = letter("attempts-exhausted", DOWN, number)
    assert (first == expected) is is_last


def test_with_one_attempt_nothing_is_ever_parked_for_a_failure() -> None:
    dead = letter("attempts-exhausted", DOWN, 1)
    policy = replace(IMMEDIATE, attempts_max=1)
    assert decide(None, failed(FIRST, DOWN), NOW, policy) == Decision(None, given_up(dead))


@pytest.mark.parametrize(("deadline_ms", "is_late"), [(NOW + 2_000, False), (NOW + 1_999, True)])
def test_no_backoff_is_scheduled_past_the_deadline(deadline_ms: int, is_late: bool) -> None:
    event = failed(FIRST, DOWN, deadline_ms=deadline_ms)
    decision = decide(None, event, NOW, POLICY)
    if is_late:
        assert decision == Decision(None, given_up(letter("deadline-passed", DOWN, 1)))
    else:
        assert decision.state is not None


@pytest.mark.parametrize(("deadline_ms", "is_late"), [(NOW + 50, False), (NOW + 49, True)])
def test_no_immediate_attempt_is_made_past_the_deadline(deadline_ms: int, is_late: bool) -> None:
    event = failed(FIRST, DOWN, deadline_ms=deadline_ms)
    decision = decide(None, event, NOW, IMMEDIATE)
    if is_late:
        assert decision == Decision(None, given_up(letter("deadline-passed", DOWN, 1)))
    else:
        assert isinstance(decision.effects[-1], RetryInLane)


def test_a_retry_after_beyond_the_deadline_gives_up_at_once() -> None:
    event = failed(FIRST, SLOW_DOWN, deadline_ms=NOW + 8_999)
    decision = decide(None, event, NOW, POLICY)
    assert decision == Decision(None, given_up(letter("deadline-passed", SLOW_DOWN, 1)))


def test_a_due_head_past_its_deadline_is_dead_lettered_with_its_last_cause() -> None:
    dead = DeadLetter("deadline-passed", "DeadlinePassed", "TransientError: before", 3)
    assert decide(PARKED, DeadlinePassed("m4", attempts=3), NOW, POLICY) == Decision(
        AFTER_HEAD, head_given_up(dead, AFTER_HEAD)
    )


def test_the_reason_that_is_nearest_wins() -> None:
    """Permanent before spent attempts before the deadline."""
    last = Attempt(5, 1, 4)
    for failure, deadline_ms, reason in [
        (NEVER, 0, "permanent"),
        (DOWN, 0, "attempts-exhausted"),
    ]:
        decision = decide(None, failed(last, failure, deadline_ms=deadline_ms), NOW, POLICY)
        assert decision.effects[0] == letter(reason, failure, 5)


@pytest.mark.parametrize("state", [None, PARKED, HELD], ids=["flows", "parked", "held"])
def test_a_message_too_large_to_wait_leaves_the_queue_untouched(state: ParkedKey | None) -> None:
    failure = Failure(False, "RecordTooLargeError", "5 MB")
    decision = decide(state, TooLarge(failure, attempts=1), NOW, POLICY)
    assert decision == Decision(state, given_up(letter("permanent", failure, 1)))


# -- due --------------------------------------------------------------------------------------


def test_a_due_head_is_attempted_with_its_counts() -> None:
    assert decide(PARKED, Due(), NOW, POLICY) == Decision(PARKED, (NEXT,))
    fresh = replace(PARKED, attempts=0, rounds=0)
    assert decide(fresh, Due(), NOW, POLICY) == Decision(fresh, (FIRST,))


@pytest.mark.parametrize("known", [None, "parked"])
def test_a_head_that_the_inbox_has_forgotten_or_knows_to_wait_is_attempted(
    known: str | None,
) -> None:
    assert decide(PARKED, Due(known), NOW, POLICY) == Decision(PARKED, (NEXT,))


@pytest.mark.parametrize("known", ["applied", "dead-lettered"])
def test_a_head_whose_first_copy_has_ended_is_dropped_as_a_duplicate(known: str) -> None:
    dropped = (Count("duplicates"), Count("unparked"))
    assert decide(PARKED, Due(known), NOW, POLICY) == Decision(
        AFTER_HEAD, (DropMessage(4), SaveKey(AFTER_HEAD), *dropped)
    )
    assert decide(ALONE, Due(known), NOW, POLICY) == Decision(
        None, (DropMessage(4), DropKey(), *dropped)
    )


@pytest.mark.parametrize("known", [None, "parked", "applied"])
@pytest.mark.parametrize(
    "state", [None, HELD, replace(PARKED, due_ms=NOW + 1)], ids=["flows", "held", "not yet"]
)
def test_a_wake_up_that_something_has_overtaken_does_nothing(
    state: ParkedKey | None, known: str | None
) -> None:
    assert decide(state, Due(known), NOW, POLICY) == Decision(state, ())


def test_a_doomed_head_is_dead_lettered_without_a_call() -> None:
    assert decide(DOOMED, Due(), NOW, POLICY) == Decision(
        AFTER_HEAD, head_given_up(letter("permanent", NEVER, 2), AFTER_HEAD)
    )


# -- hooks ------------------------------------------------------------------------------------


HOOK = Failure(True, "TransientError", "hook waits")


def test_a_hook_that_fails_parks_a_flowing_message_with_its_verdict() -> None:
    dead = letter("attempts-exhausted", DOWN, 5)
    cause = "dead-letter hook failed: TransientError: hook waits"
    parked = ParkedKey(
        head=0,
        tail=1,
        attempts=5,
        rounds=1,
        due_ms=NOW + 2_000,
        cause=cause,
        oldest_ms=NOW,
        doom=Doom("attempts-exhausted", "TransientError", "provider down"),
        history=(Attempted(NOW, 5, "m4", cause),),
    )
    assert decide(None, HookFailed(dead, HOOK, "m4"), NOW, POLICY) == Decision(
        parked,
        (
            Count("dead_letter_hook_failures"),
            SaveMessage(0),
            SaveKey(parked),
            SaveInbox(Outcome.PARKED),
            Count("parked"),
            Settle(),
        ),
    )


def test_a_hook_that_fails_keeps_a_head_with_its_verdict_and_every_call_it_had() -> None:
    dead = letter("permanent", NEVER, 3)
    cause = "dead-letter hook failed: TransientError: hook waits"
    waiting = noted(
        replace(
            PARKED,
            attempts=3,
            rounds=3,
            due_ms=NOW + 8_000,
            doom=Doom("permanent", "PermanentError", "card expired"),
        ),
        3,
        cause,
    )
    decision = decide(PARKED, HookFailed(dead, HOOK, "m4"), NOW, POLICY)
    assert decision == Decision(waiting, (Count("dead_letter_hook_failures"), SaveKey(waiting)))


def test_a_hook_that_fails_for_good_is_tried_again_all_the_same() -> None:
    """A verdict must not be lost because its hook has a defect."""
    dead = letter("permanent", NEVER, 1)
    state: ParkedKey | None = None
    for n in range(1, 30):
        hook = HookFailed(dead, replace(HOOK, is_transient=False), "m4")
        state = decide(state, hook, NOW, POLICY).state
        assert state is not None
        assert state.doom is not None
        assert state.due_ms == NOW + min(2_000 * 2 ** (n - 1), 300_000)
        first, *_ = decide(replace(state, due_ms=NOW), Due(), NOW, POLICY).effects
        assert first == dead


# -- histories and restarts -------------------------------------------------------------------


def test_the_history_keeps_the_latest_attempts_only() -> None:
    state: ParkedKey | None = None
    policy = replace(POLICY, attempts_max=100)
    for n in range(1, 51):
        event = failed(Attempt(n, 1, n - 1), replace(DOWN, error_message=str(n)))
        state = decide(state, event, NOW + n, policy).state
    assert state is not None
    assert [entry.attempt for entry in state.history] == list(range(51 - HISTORY_MAX, 51))
    assert state.cause == state.history[-1].cause == "TransientError: 50"
    assert state.oldest_ms == NOW + 1


@pytest.mark.parametrize(
    ("state", "due_ms"),
    [
        (replace(PARKED, due_ms=NOW + 5), NOW + 5),
        (replace(PARKED, due_ms=NOW), NOW),
        (replace(PARKED, due_ms=NOW - 5), NOW),
        (HELD, None),
        (replace(HELD, due_ms=NOW - 5), None),
    ],
)
def test_after_a_restart_a_key_is_due_when_it_was_but_not_in_the_past(
    state: ParkedKey, due_ms: int | None
) -> None:
    assert resume(state, NOW) == due_ms


def test_a_decision_needs_nothing_but_its_arguments() -> None:
    event: Event = failed(NEXT, DOWN)
    assert len({decide(PARKED, event, NOW, POLICY) for _ in range(3)}) == 1
