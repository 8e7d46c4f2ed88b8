"""The record of a parked key and the keys of its rows."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from bookstore_streams.core.parking import (
    HISTORY_MAX,
    Attempted,
    Doom,
    KeyState,
    ParkedKey,
    message_key,
    message_prefix,
    parked_key,
    split_message_key,
    split_parked_key,
)

PARKED = ParkedKey(
    head=3, tail=5, attempts=2, rounds=1, due_ms=9, cause="c", oldest_ms=1,
    history=(Attempted(1, 1, "m", "c"),),
)  # fmt: skip


def test_a_row_is_json_that_shows_what_a_person_asks() -> None:
    row = orjson.loads(orjson.dumps(PARKED.to_row()))
    assert row == {
        "state": "waiting",
        "head": 3,
        "tail": 5,
        "count": 2,
        "attempts": 2,
        "rounds": 1,
        "due_ms": 9,
        "cause": "c",
        "oldest_ms": 1,
        "doom": None,
        "history": [[1, 1, "m", "c"]],
    }
    assert ParkedKey.from_row(row) == PARKED


def test_a_verdict_and_a_hold_survive_the_row() -> None:
    held = replace(PARKED, state=KeyState.HELD, doom=Doom("permanent", "E", "text"))
    assert ParkedKey.from_row(orjson.loads(orjson.dumps(held.to_row()))) == held


def test_followers_count_up_and_a_settled_head_counts_down_to_nothing() -> None:
    longer = PARKED.with_follower()
    assert (longer.head, longer.tail, longer.count) == (3, 6, 3)
    after = replace(longer, doom=Doom("permanent", "E", "text")).without_head(77)
    assert after == replace(longer, head=4, attempts=0, rounds=0, due_ms=77)
    assert after is not None
    last = after.without_head(78)
    assert last is not None
    assert last.count == 1
    assert last.without_head(79) is None


def test_the_history_drops_its_oldest_entry() -> None:
    state = PARKED
    for n in range(HISTORY_MAX + 5):
        state = state.with_failure(Attempted(n, n, "m", f"c{n}"))
    assert len(state.history) == HISTORY_MAX
    assert state.history[-1].cause == state.cause == f"c{HISTORY_MAX + 4}"


@pytest.mark.parametrize("key", ["A", "a\0b", "ü", "x" * 10_000])
def test_row_keys_give_back_what_they_were_made_of(key: str) -> None:
    assert split_parked_key(parked_key("billing", key)) == ("billing", key)
    assert split_message_key(message_key("billing", key, 2**40)) == ("billing", key, 2**40)


def test_byte_order_is_queue_order() -> None:
    sequences = [0, 1, 2, 9, 10, 255, 256, 65_535, 65_536, 2**32, 2**63]
    keys = [message_key("billing", "A", sequence) for sequence in sequences]
    assert keys == sorted(keys)


def test_no_key_is_found_under_the_prefix_of_another() -> None:
    names = ["", "A", "AA", "A\0", "A\0\0\0\0", "\0", "B"]
    for name in names:
        prefix = message_prefix("billing", name)
        found = [n for n in names if message_key("billing", n, 7).startswith(prefix)]
        assert found == [name]
    assert not message_key("billing2", "A", 0).startswith(message_prefix("billing", "A"))
