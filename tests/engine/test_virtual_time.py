"""Virtual time is exact, costs nothing, and does not hide what went wrong."""

from __future__ import annotations

import asyncio
import time

import pytest

from bookstore_streams.testing.virtual_time import START_MS, StuckError, VirtualClock, run


def test_waits_last_exactly_as_long_as_they_say_and_cost_nothing() -> None:
    async def main() -> list[int]:
        clock, seen = VirtualClock(), []
        for seconds in (0.001, 2.3, 3_600, 0):
            await asyncio.sleep(seconds)
            seen.append(clock.now_ms() - START_MS)
        return seen

    began = time.perf_counter()
    assert run(main()) == [1, 2_301, 3_602_301, 3_602_301]
    assert time.perf_counter() - began < 5


def test_timers_fire_in_order_whoever_set_them_first() -> None:
    async def main() -> list[str]:
        fired: list[str] = []
        loop = asyncio.get_running_loop()
        for name, delay in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
            loop.call_later(delay, fired.append, name)
        await asyncio.sleep(10)
        return fired

    assert run(main()) == ["a", "b", "c"]


def test_a_timeout_ends_a_wait_for_something_that_does_not_come() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 60)

    run(main())


def test_a_wait_that_nobody_will_end_is_told_instead_of_hanging() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StuckError):
        run(main())


def test_what_fails_with_nobody_to_hear_it_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("unheard")

    async def main() -> None:
        asyncio.create_task(fail())  # noqa: RUF006 - nobody keeps it on purpose
        await asyncio.sleep(1)

    with pytest.raises(BaseExceptionGroup) as caught:
        run(main())
    assert [str(error) for error in caught.value.exceptions] == ["unheard"]


def test_a_clock_can_be_set_while_time_goes_on() -> None:
    async def main() -> list[int]:
        clock = VirtualClock(start_ms=100)
        clock.shift_ms = -50
        await asyncio.sleep(1)
        return [clock.now_ms()]

    assert run(main()) == [1_050]
