"""How long to wait before the next attempt; deterministic, so that every worker agrees."""

from __future__ import annotations

from hashlib import blake2b

from .policy import Jitter, Policy

# The first extra attempt in a lane comes this soon, each further one after twice the wait:
# long enough for a dropped connection to be replaced, short enough to stay in the lane.
IMMEDIATE_MS_BASE = 50

# Nobody waits longer than a year, whatever the other side asks for: a due time must stay a
# number that every clock and store can hold.
WAIT_MS_MAX = 365 * 86_400_000


def backoff_ms(policy: Policy, message_id: str, rounds: int, retry_after_ms: int | None) -> int:
    """The wait after a round of attempts has failed, in ms, at least 0.

    Args:
        policy: of the consumer.
        message_id: spreads the jitter; the same id and round always wait equally long.
        rounds: rounds of attempts that have failed by now, counted from 1.
        retry_after_ms: what the failing side asked for; wins where it is longer.
    """
    # A float overflows long before 2**31 rounds do; the bound is reached far earlier.
    exponent = min(rounds - 1, 64)
    wait = min(policy.backoff_ms_base * policy.backoff_factor**exponent, policy.backoff_ms_max)
    match policy.jitter:
        case Jitter.NONE:
            spread = wait
        case Jitter.FULL:
            spread = wait * _fraction(message_id, rounds)
        case Jitter.EQUAL:
            spread = wait / 2 + wait / 2 * _fraction(message_id, rounds)
    return min(max(int(spread), retry_after_ms or 0), WAIT_MS_MAX)


def immediate_ms(policy: Policy, in_round: int, elapsed_ms: int) -> int | None:
    """The wait before the next attempt of the same round, in ms; None when there is none left.

    Args:
        policy: of the consumer.
        in_round: attempts made in this round, counted from 1.
        elapsed_ms: since the first attempt of this round began.
    """
    if in_round > policy.immediate_attempts:
        return None
    wait = IMMEDIATE_MS_BASE << min(in_round - 1, 20)
    return wait if elapsed_ms + wait <= policy.immediate_total_ms_max else None


def _fraction(message_id: str, rounds: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    seed = f"{rounds}:{message_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(seed, digest_size=7).digest(), "big") / (1 << 56)
