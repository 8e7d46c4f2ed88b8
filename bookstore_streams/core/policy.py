"""How often and how long a consumer retries; values only, no decision is taken here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Jitter(StrEnum):
    """How a back-off is spread so that keys that failed together do not return together."""

    NONE = "none"
    FULL = "full"
    EQUAL = "equal"


@dataclass(frozen=True, slots=True)
class Policy:
    """The retry policy of one consumer.

    Attributes:
        attempts_max: calls of the handler a message gets, immediate ones counted, at least 1.
        backoff_ms_base: wait after the first round of attempts, before jitter.
        backoff_factor: what each further wait is multiplied by, at least 1.
        backoff_ms_max: the longest wait the back-off alone can give; a `retry_after_ms` of
            the failing side may be longer.
        jitter: how a wait is spread.
        deadline_ms: business deadline, counted from the time the event itself carries;
            None when there is none.
        immediate_attempts: extra attempts in the lane in each round, 0 for none.
        immediate_total_ms_max: a round starts no extra attempt later than this after its first.
    """

    attempts_max: int = 12
    backoff_ms_base: int = 2_000
    backoff_factor: float = 2.0
    backoff_ms_max: int = 300_000
    jitter: Jitter = Jitter.EQUAL
    deadline_ms: int | None = None
    immediate_attempts: int = 0
    immediate_total_ms_max: int = 2_000
