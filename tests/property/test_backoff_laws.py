"""Laws of the waits, over any policy, id and number of rounds."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bookstore_streams.core.backoff import IMMEDIATE_MS_BASE, backoff_ms, immediate_ms
from bookstore_streams.core.policy import Jitter, Policy

POLICIES = st.builds(
    Policy,
    backoff_ms_base=st.integers(1, 10**7),
    backoff_factor=st.floats(1, 10),
    backoff_ms_max=st.integers(1, 10**9),
    jitter=st.sampled_from(Jitter),
    immediate_attempts=st.integers(0, 50),
    immediate_total_ms_max=st.integers(0, 10**6),
)
IDS = st.text(st.characters(), max_size=20)
ROUNDS = st.integers(1, 60) | st.integers(1, 2**40)


@given(POLICIES, IDS, ROUNDS)
def test_a_wait_is_a_whole_number_between_nothing_and_the_bound(
    policy: Policy, message_id: str, rounds: int
) -> None:
    wait = backoff_ms(policy, message_id, rounds, None)
    assert isinstance(wait, int)
    assert 0 <= wait <= policy.backoff_ms_max


@given(POLICIES, IDS, ROUNDS)
def test_jitter_only_shortens_and_equal_jitter_at_most_by_half(
    policy: Policy, message_id: str, rounds: int
) -> None:
    waits = {
        jitter: backoff_ms(replace(policy, jitter=jitter), message_id, rounds, None)
        for jitter in Jitter
    }
    assert waits[Jitter.FULL] <= waits[Jitter.EQUAL] <= waits[Jitter.NONE]
    assert waits[Jitter.EQUAL] >= waits[Jitter.NONE] // 2


@given(POLICIES, IDS, st.integers(1, 100))
def test_without_jitter_a_later_wait_is_never_shorter(
    policy: Policy, message_id: str, rounds: int
) -> None:
    plain = replace(policy, jitter=Jitter.NONE)
    assert backoff_ms(plain, message_id, rounds, None) <= backoff_ms(
        plain, message_id, rounds + 1, None
    )


@given(POLICIES, IDS, ROUNDS, st.integers(0, 2**33))
def test_a_longer_request_of_the_other_side_wins(
    policy: Policy, message_id: str, rounds: int, retry_after_ms: int
) -> None:
    own = backoff_ms(policy, message_id, rounds, None)
    assert backoff_ms(policy, message_id, rounds, retry_after_ms) == max(own, retry_after_ms)


@given(POLICIES, IDS, ROUNDS, st.none() | st.integers(0))
def test_a_due_time_fits_a_row_whatever_the_other_side_asks_for(
    policy: Policy, message_id: str, rounds: int, retry_after_ms: int | None
) -> None:
    assert backoff_ms(policy, message_id, rounds, retry_after_ms) < 2**62


@given(POLICIES, st.integers(0, 10**7))
def test_the_immediate_attempts_of_a_round_are_bounded_in_number_and_time(
    policy: Policy, call_ms: int
) -> None:
    """However long each call takes: the next one starts within the round's time, or never."""
    elapsed_ms, in_round = call_ms, 1
    while (wait := immediate_ms(policy, in_round, elapsed_ms)) is not None:
        assert wait >= IMMEDIATE_MS_BASE
        assert elapsed_ms + wait <= policy.immediate_total_ms_max
        elapsed_ms += wait + call_ms
        in_round += 1
    assert in_round <= policy.immediate_attempts + 1
