"""What is parked, and the timer that wakes it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstore_streams.core.decide import resume
from bookstore_streams.core.parking import Attempted, Doom, KeyState, ParkedKey
from bookstore_streams.engine.parking_lot import HANDED_OVER_MAX, ParkingLot, due_ms_of

MOMENT = st.integers(0, 2**53)
TEXT = st.text() | st.sampled_from(
    ['"due_ms":7,', '"state":"held"', '{"due_ms":1}', '\\"due_ms\\":2,']
)


class Clock:
    now = 1_000

    def now_ms(self) -> int:
        return self.now


@given(
    due_ms=MOMENT,
    state=st.sampled_from(KeyState),
    cause=TEXT,
    numbers=st.tuples(MOMENT, MOMENT, MOMENT, MOMENT),
    doom=st.none() | st.builds(Doom, TEXT, TEXT, TEXT),
    history=st.lists(st.builds(Attempted, MOMENT, MOMENT, TEXT, TEXT), max_size=2),
)
def test_the_due_time_of_a_row_is_what_reading_all_of_it_gives(
    due_ms: int,
    state: KeyState,
    cause: str,
    numbers: tuple[int, int, int, int],
    doom: Doom | None,
    history: list[Attempted],
) -> None:
    head, tail, attempts, rounds = numbers
    key = ParkedKey(
        head=head,
        tail=tail,
        attempts=attempts,
        rounds=rounds,
        due_ms=due_ms,
        cause=cause,
        oldest_ms=0,
        state=state,
        doom=doom,
        history=tuple(history),
    )
    assert due_ms_of(orjson.dumps(key.to_row())) == resume(key, 0)


def test_a_key_is_held_until_it_is_dropped_and_by_its_own_consumer() -> None:
    lot = ParkingLot(Clock())
    lot.keep("billing", "a", 5)
    lot.fill("ordering", [("b", None), ("c", 7)])
    held = [(c, k) for c in ("billing", "ordering") for k in "abc" if lot.holds(c, k)]
    assert held == [("billing", "a"), ("ordering", "b"), ("ordering", "c")]
    assert (len(lot), lot.next_ms()) == (3, 5)
    lot.drop("billing", "a")
    assert (len(lot), lot.next_ms()) == (2, 7)


async def woken(lot: ParkingLot, rounds: int, room: Iterable[bool]) -> list[int]:
    """How many keys were handed over in each of so many turns of the loop."""
    handed: list[int] = []
    answers = iter(room)
    waking = asyncio.create_task(
        lot.wake(lambda keys: handed.append(len(list(keys))), lambda: next(answers, False))
    )
    for _ in range(rounds):
        await asyncio.sleep(0)
    waking.cancel()
    return handed


def test_a_million_due_keys_are_not_handed_over_at_once() -> None:
    """One that is handed over costs memory: the next wait until there is room."""
    lot = ParkingLot(Clock())
    lot.fill("billing", ((f"key-{n}", n % 900) for n in range(3 * HANDED_OVER_MAX)))
    assert asyncio.run(woken(lot, 9, [True, True, False])) == [HANDED_OVER_MAX] * 2
    assert len(lot) == 3 * HANDED_OVER_MAX


@pytest.mark.parametrize("due_ms", [None, 2_000])
def test_what_is_not_due_stays(due_ms: int | None) -> None:
    lot = ParkingLot(Clock())
    lot.keep("billing", "a", due_ms)
    assert asyncio.run(woken(lot, 5, [True] * 5)) == []
