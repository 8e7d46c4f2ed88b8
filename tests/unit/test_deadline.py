"""When it is too late."""

from __future__ import annotations

import pytest

from bookstore_streams.core.deadline import deadline_at_ms, is_past
from bookstore_streams.core.policy import Policy


@pytest.mark.parametrize(
    ("deadline_ms", "since_ms", "at_ms"),
    [
        (None, 5, None),
        (1_000, None, None),
        (None, None, None),
        (1_000, 5, 1_005),
        (1_000, 0, 1_000),
    ],
)
def test_a_deadline_needs_a_policy_and_a_time_to_count_from(
    deadline_ms: int | None, since_ms: int | None, at_ms: int | None
) -> None:
    assert deadline_at_ms(Policy(deadline_ms=deadline_ms), since_ms) == at_ms


@pytest.mark.parametrize(
    ("deadline_ms", "at_ms", "is_late"),
    [(None, 10**15, False), (100, 99, False), (100, 100, False), (100, 101, True), (0, 1, True)],
)
def test_the_deadline_itself_is_in_time(deadline_ms: int | None, at_ms: int, is_late: bool) -> None:
    assert is_past(deadline_ms, at_ms) is is_late
