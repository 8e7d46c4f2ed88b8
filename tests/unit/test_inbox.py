"""The row that makes effects happen once."""

from __future__ import annotations

import pytest

from bookstore_streams.core.inbox import (
    Outcome,
    inbox_key,
    inbox_row,
    is_duplicate,
    split_inbox_key,
)


@pytest.mark.parametrize(
    ("outcome", "is_replay", "expected"),
    [
        (None, False, False),
        (None, True, False),
        ("applied", False, True),
        ("applied", True, True),
        ("parked", False, True),
        ("parked", True, True),
        ("dead-lettered", False, True),
        ("dead-lettered", True, False),
        ("an outcome of a later version", False, True),
        ("an outcome of a later version", True, True),
    ],
)
def test_only_a_replay_opens_a_dead_lettered_id_again(
    outcome: str | None, is_replay: bool, expected: bool
) -> None:
    assert is_duplicate(outcome, is_replay) is expected


@pytest.mark.parametrize("message_id", ["m1", "", "a\0b", "ü/ß", "consumer\0m"])
def test_a_key_gives_back_what_it_was_made_of(message_id: str) -> None:
    assert split_inbox_key(inbox_key("billing", message_id)) == ("billing", message_id)


def test_a_row_tells_where_the_message_is_and_where_it_was_read() -> None:
    assert inbox_row(Outcome.PARKED, 5, None, "orders", 2, 41) == {
        "outcome": "parked",
        "at_ms": 5,
        "key": None,
        "topic": "orders",
        "partition": 2,
        "offset": 41,
    }
