"""How long a wait is, by example."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookstore_streams.core.backoff import IMMEDIATE_MS_BASE, backoff_ms, immediate_ms
from bookstore_streams.core.policy import Jitter, Policy

PLAIN = Policy(backoff_ms_base=1_000, backoff_ms_max=30_000, jitter=Jitter.NONE)


@pytest.mark.parametrize(
    ("factor", "waits"),
    [
        (1.0, [1_000, 1_000, 1_000, 1_000]),
        (1.5, [1_000, 1_500, 2_250, 3_375]),
        (2.0, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]),
        (10.0, [1_000, 10_000, 30_000]),
    ],
)
def test_waits_grow_by_the_factor_up_to_the_bound(factor: float, waits: list[int]) -> None:
    policy = replace(PLAIN, backoff_factor=factor)
    assert [backoff_ms(policy, "m", n + 1, None) for n in range(len(waits))] == waits


def test_the_wait_after_very_many_rounds_is_the_bound() -> None:
    assert backoff_ms(replace(PLAIN, backoff_factor=10), "m", 2**31, None) == 30_000


@pytest.mark.parametrize(
    ("retry_after_ms", "wait"),
    [(None, 2_000), (0, 2_000), (1, 2_000), (2_001, 2_001), (10**9, 10**9), (-5, 2_000)],
)
def test_the_longer_of_backoff_and_retry_after_wins(retry_after_ms: int | None, wait: int) -> None:
    assert backoff_ms(PLAIN, "m", 2, retry_after_ms) == wait


def test_jitter_is_the_same_everywhere_and_for_ever() -> None:
    """Pinned: another number after an update would let two versions of a worker disagree."""
    full, equal = replace(PLAIN, jitter=Jitter.FULL), replace(PLAIN, jitter=Jitter.EQUAL)
    assert [backoff_ms(full, "order-1", n, None) for n in (1, 2, 3)] == [503, 381, 2714]
    assert [backoff_ms(equal, "order-1", n, None) for n in (1, 2, 3)] == [751, 1190, 3357]
    assert backoff_ms(full, "order-2", 1, None) == 314


def test_jitter_spreads_keys_over_the_whole_range() -> None:
    for jitter, lowest in ((Jitter.FULL, 0), (Jitter.EQUAL, 500)):
        policy = replace(PLAIN, jitter=jitter)
        waits = sorted(backoff_ms(policy, f"m{n}", 1, None) for n in range(1_000))
        width = 1_000 - lowest
        assert lowest <= waits[0] < lowest + width * 0.02
        assert 1_000 - width * 0.02 < waits[-1] <= 1_000
        assert abs(waits[500] - (lowest + width / 2)) < width * 0.1


def test_an_id_with_a_lone_surrogate_has_a_wait_too() -> None:
    assert backoff_ms(replace(PLAIN, jitter=Jitter.FULL), "\ud800", 1, None) <= 1_000


def test_immediate_waits_double_and_end_with_their_number() -> None:
    policy = replace(PLAIN, immediate_attempts=3, immediate_total_ms_max=10_000)
    waits = [immediate_ms(policy, n, 0) for n in (1, 2, 3, 4)]
    assert waits == [IMMEDIATE_MS_BASE, 2 * IMMEDIATE_MS_BASE, 4 * IMMEDIATE_MS_BASE, None]


def test_immediate_attempts_end_with_their_time() -> None:
    policy = replace(PLAIN, immediate_attempts=9, immediate_total_ms_max=1_000)
    assert immediate_ms(policy, 1, 950) == 50
    assert immediate_ms(policy, 1, 951) is None


def test_without_immediate_attempts_there_is_none() -> None:
    assert immediate_ms(PLAIN, 1, 0) is None
