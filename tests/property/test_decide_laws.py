"""Laws that every decision keeps, over any state, event, time and policy."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

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
    RetryInLane,
    SaveInbox,
    SaveKey,
    SaveMessage,
    Settle,
)
from bookstore_streams.core.envelope import Ignored, Reason
from bookstore_streams.core.envelope import Rejected as RejectedRecord
from bookstore_streams.core.inbox import Outcome
from bookstore_streams.core.parking import (
    HISTORY_MAX,
    Attempted,
    Doom,
    KeyState,
    ParkedKey,
)
from bookstore_streams.core.policy import Jitter, Policy

MS = st.integers(0, 2**41)
SHORT_MS = st.integers(0, 20_000)
TEXT = st.text(max_size=4)
COUNTS = st.integers(0, 30)

POLICIES = st.builds(
    Policy,
    attempts_max=st.integers(1, 12),
    backoff_ms_base=st.integers(1, 5_000),
    backoff_factor=st.floats(1, 10),
    backoff_ms_max=st.integers(1, 300_000),
    jitter=st.sampled_from(Jitter),
    deadline_ms=st.none() | SHORT_MS,
    immediate_attempts=st.integers(0, 4),
    immediate_total_ms_max=st.integers(0, 4_000),
)
DOOMS = st.builds(Doom, st.sampled_from(Reason).map(str), TEXT, TEXT)
HISTORIES = st.lists(st.builds(Attempted, MS, COUNTS, TEXT, TEXT), max_size=HISTORY_MAX).map(tuple)


@st.composite
def parked_keys(draw: st.DrawFn) -> ParkedKey:
    head = draw(st.integers(0, 2**40))
    rounds = draw(COUNTS)
    return ParkedKey(
        head=head,
        tail=head + draw(st.integers(1, 50)),
        attempts=rounds + draw(st.integers(0, 5)),
        rounds=rounds,
        due_ms=draw(MS),
        cause=draw(TEXT),
        oldest_ms=draw(MS),
        state=draw(st.sampled_from(KeyState)),
        doom=draw(st.none() | DOOMS),
        history=draw(HISTORIES),
    )


STATES = st.none() | parked_keys()
FAILURES = st.builds(
    Failure, st.booleans(), TEXT, TEXT, st.none() | SHORT_MS | st.integers(0, 2**45)
)
# An outcome follows the attempt that was ordered: its number is above what the state counts.
ATTEMPTS = st.builds(Attempt, st.integers(1, 40), st.integers(1, 6), COUNTS)
LETTERS = st.builds(DeadLetter, st.sampled_from(Reason).map(str), TEXT, TEXT, COUNTS)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Arrived, st.none() | st.sampled_from(Outcome).map(str) | TEXT, st.booleans()),
    st.builds(Ignored, st.sampled_from(["tombstone", "unknown-type"])),
    st.builds(Due, st.none() | st.sampled_from(Outcome).map(str) | TEXT),
    st.builds(
        Rejected,
        st.builds(RejectedRecord, st.sampled_from(Reason), TEXT, TEXT, st.none(), st.none()),
        TEXT,
    ),
    st.builds(Succeeded, ATTEMPTS),
    st.builds(Failed, ATTEMPTS, FAILURES, TEXT, SHORT_MS, st.none() | MS),
    st.builds(DeadlinePassed, TEXT, COUNTS),
    st.builds(HookFailed, LETTERS, FAILURES, TEXT),
    st.builds(TooLarge, FAILURES, COUNTS),
)

#: Effects that put something where it will be found again.
SAVES = (ApplyWork, SaveInbox, SaveMessage, SaveKey, DropMessage, DropKey, DeadLetter)


@given(STATES, EVENTS, MS, POLICIES)
def test_every_state_has_an_answer_to_every_event_and_always_the_same(
    state: ParkedKey | None, event: Event, now_ms: int, policy: Policy
) -> None:
    decision = decide(state, event, now_ms, policy)
    assert isinstance(decision, Decision)
    assert decide(state, event, now_ms, policy) == decision


@given(STATES, EVENTS, MS, POLICIES)
def test_nothing_is_saved_after_the_offset_is_settled(
    state: ParkedKey | None, event: Event, now_ms: int, policy: Policy
) -> None:
    effects = decide(state, event, now_ms, policy).effects
    kinds = [type(effect) for effect in effects]
    assert kinds.count(Settle) <= 1
    if Settle in kinds:
        assert not set(kinds[kinds.index(Settle) :]) & set(SAVES)


@given(STATES, EVENTS, MS, POLICIES)
def test_a_call_is_ordered_alone_and_writes_nothing(
    state: ParkedKey | None, event: Event, now_ms: int, policy: Policy
) -> None:
    """What is written before a call would be there although it fails."""
    decision = decide(state, event, now_ms, policy)
    kinds = [type(effect) for effect in decision.effects]
    if Attempt in kinds:
        assert kinds == [Attempt]
    if RetryInLane in kinds:
        assert kinds == [Count, RetryInLane]
    if {Attempt, RetryInLane} & set(kinds):
        assert decision.state == state


@given(STATES, EVENTS, MS, POLICIES)
def test_what_is_saved_of_a_key_is_its_state(
    state: ParkedKey | None, event: Event, now_ms: int, policy: Policy
) -> None:
    """A restart finds what a running worker knows."""
    decision = decide(state, event, now_ms, policy)
    saved = [effect.key for effect in decision.effects if isinstance(effect, SaveKey)]
    dropped = any(isinstance(effect, DropKey) for effect in decision.effects)
    if decision.state == state:
        assert not dropped
        assert all(key == state for key in saved)
    elif decision.state is None:
        assert dropped
        assert not saved
    else:
        assert saved == [decision.state]
        assert not dropped


@given(STATES, EVENTS, MS, POLICIES)
def test_rows_of_messages_come_and_go_with_head_and_tail(
    state: ParkedKey | None, event: Event, now_ms: int, policy: Policy
) -> None:
    """Sequences only grow while the key is parked, and what is in the lot is head to tail - 1."""
    decision = decide(state, event, now_ms, policy)
    rows = set() if state is None else set(range(state.head, state.tail))
    for effect in decision.effects:
        if isinstance(effect, SaveMessage):
            assert effect.sequence > max(rows, default=-1)
            rows.add(effect.sequence)
        if isinstance(effect, DropMessage):
            assert effect.sequence == min(rows)
            rows.remove(effect.sequence)
    after = decision.state
    assert rows == (set() if after is None else set(range(after.head, after.tail)))
    if after is not None:
        assert after.count >= 1
        assert len(after.history) <= HISTORY_MAX
        if state is not None:
            assert after.head >= state.head
            assert after.tail >= state.tail


@given(STATES, EVENTS, MS, POLICIES)
def test_a_due_time_that_is_set_is_never_in_the_past(
    state: ParkedKey | None, event: Event, now_ms: int, policy: Policy
) -> None:
    after = decide(state, event, now_ms, policy).state
    if after is not None and (state is None or after.due_ms != state.due_ms):
        assert after.due_ms >= now_ms


@given(STATES, EVENTS, MS, POLICIES)
def test_a_message_that_is_settled_stands_in_the_inbox_or_was_known_or_unwanted(
    state: ParkedKey | None, event: Event, now_ms: int, policy: Policy
) -> None:
    """And a message leaves the lot only with its outcome: nothing is skipped silently."""
    effects = decide(state, event, now_ms, policy).effects
    outcomes = [effect.outcome for effect in effects if isinstance(effect, SaveInbox)]
    kinds = {type(effect) for effect in effects}
    if {Settle, DropMessage} & kinds and Count("duplicates") not in effects:
        assert len(outcomes) == 1 or isinstance(event, Ignored)
    assert (Outcome.APPLIED in outcomes) == (ApplyWork in kinds)
    assert (Outcome.DEAD_LETTERED in outcomes) == (DeadLetter in kinds)
    assert (Outcome.PARKED in outcomes) == (SaveMessage in kinds)


@given(STATES, EVENTS, MS, POLICIES)
def test_everything_but_the_plain_way_is_counted(
    state: ParkedKey | None, event: Event, now_ms: int, policy: Policy
) -> None:
    effects = decide(state, event, now_ms, policy).effects
    kinds = {type(effect) for effect in effects}
    plain = not effects or Attempt in kinds or kinds == {ApplyWork, SaveInbox, Settle}
    assert plain or Count in kinds


@given(parked_keys(), st.builds(Arrived, st.none(), st.booleans()), MS, POLICIES)
def test_while_a_key_is_parked_no_arrival_is_attempted(
    state: ParkedKey, event: Arrived, now_ms: int, policy: Policy
) -> None:
    decision = decide(state, event, now_ms, policy)
    assert not any(isinstance(effect, Attempt | RetryInLane) for effect in decision.effects)
    assert decision.state == replace(state, tail=state.tail + 1)


@st.composite
def outcomes_of_heads(draw: st.DrawFn) -> tuple[ParkedKey, Failed | HookFailed]:
    """A parked key and a failure of the attempt that was ordered of its head."""
    state = draw(parked_keys())
    in_round = draw(st.integers(1, 5))
    attempt = Attempt(state.attempts + in_round, in_round, state.rounds)
    failure = draw(FAILURES)
    if draw(st.booleans()):
        return state, Failed(attempt, failure, "m", draw(SHORT_MS), draw(st.none() | MS))
    letter = replace(draw(LETTERS), attempts=attempt.number)
    return state, HookFailed(letter, failure, "m")


@given(outcomes_of_heads(), MS, POLICIES)
def test_the_attempts_of_a_head_are_never_forgotten(
    given_: tuple[ParkedKey, Failed | HookFailed], now_ms: int, policy: Policy
) -> None:
    state, event = given_
    decision = decide(state, event, now_ms, policy)
    made = event.attempt.number if isinstance(event, Failed) else event.dead_letter.attempts
    after = decision.state
    if after is not None and after.head == state.head and after != state:
        assert after.attempts == made
        assert after.rounds == state.rounds + 1
    for effect in decision.effects:
        if isinstance(effect, RetryInLane):
            assert effect.attempt.number == made + 1
        if isinstance(effect, DeadLetter):
            assert effect.attempts == made


@given(outcomes_of_heads(), MS, POLICIES)
def test_no_attempt_is_planned_beyond_the_number_allowed_or_past_the_deadline(
    given_: tuple[ParkedKey, Failed | HookFailed], now_ms: int, policy: Policy
) -> None:
    state, event = given_
    if isinstance(event, HookFailed):
        return
    decision = decide(state, event, now_ms, policy)
    after, last = decision.state, decision.effects[-1]
    planned_ms = None
    if isinstance(last, RetryInLane):
        planned_ms = now_ms + last.delay_ms
    elif after is not None and after.head == state.head:
        planned_ms = after.due_ms
    if planned_ms is not None:
        assert event.attempt.number < policy.attempts_max
        assert event.failure.is_transient
        assert event.deadline_ms is None or planned_ms <= event.deadline_ms


@given(outcomes_of_heads(), MS, POLICIES)
def test_a_hook_that_fails_loses_neither_message_nor_verdict(
    given_: tuple[ParkedKey, Failed | HookFailed], now_ms: int, policy: Policy
) -> None:
    state, event = given_
    if isinstance(event, Failed):
        return
    for before in (state, None):
        after = decide(before, event, now_ms, policy).state
        assert after is not None
        assert after.doom is not None
        letter = event.dead_letter
        due = replace(after, state=KeyState.WAITING, due_ms=now_ms)
        assert decide(due, Due(), now_ms, policy).effects[0] == letter


@given(parked_keys(), MS)
def test_resuming_never_gives_the_past_and_never_loses_a_due_time(
    state: ParkedKey, now_ms: int
) -> None:
    due_ms = resume(state, now_ms)
    if state.state is KeyState.HELD:
        assert due_ms is None
    else:
        assert due_ms is not None
        assert due_ms >= now_ms
        assert due_ms in (now_ms, state.due_ms)


@given(parked_keys(), MS, POLICIES)
def test_a_key_that_was_resumed_acts_at_its_due_time(
    state: ParkedKey, now_ms: int, policy: Policy
) -> None:
    due_ms = resume(state, now_ms)
    if due_ms is not None:
        assert decide(state, Due(), due_ms, policy).effects
