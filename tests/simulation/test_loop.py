"""The loop of several processes does to them what an operating system would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.loop import SimLoop, StuckError


def run(main: Callable[[SimLoop], Coroutine[Any, Any, None]], **bounds: Any) -> SimLoop:
    loop = SimLoop(lambda n: n - 1)  # type: ignore[abstract]
    loop.run(main(loop), **({"steps_max": 1_000, "until_s": 100.0} | bounds))
    return loop


def test_nothing_of_a_killed_process_runs_again_not_even_a_finally() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            seen.append("begun")
            await asyncio.sleep(1)
            seen.append("went on")
        finally:
            seen.append("tidied up")

    async def main(loop: SimLoop) -> None:
        process = loop.add("w1")
        task = loop.spawn(process, work())
        await asyncio.sleep(0.5)
        loop.kill(process)
        await asyncio.sleep(5)
        assert not task.done()
        seen.append("over")
        process.is_dead = False  # so that the coroutine can be tidied up after the test
        task.cancel()

    run(main)

    assert seen == ["begun", "over"]


def test_a_frozen_process_goes_on_where_it_was_while_time_went_by_for_others() -> None:
    seen: list[tuple[str, float]] = []

    async def main(loop: SimLoop) -> None:
        start_s = loop.now_s

        async def work(name: str) -> None:
            for _ in range(3):
                await asyncio.sleep(1)
                seen.append((name, loop.now_s - start_s))

        frozen, other = loop.add("w1"), loop.add("w2")
        tasks = [loop.spawn(frozen, work("frozen")), loop.spawn(other, work("other"))]
        await asyncio.sleep(1.5)
        frozen.is_frozen = True
        await asyncio.sleep(8.5)
        frozen.is_frozen = False
        await asyncio.wait(tasks)

    run(main)

    assert [at for name, at in seen if name == "other"] == [1, 2, 3]
    assert [at for name, at in seen if name == "frozen"] == [1, 10, 11]


def test_steps_of_one_process_keep_the_order_in_which_they_were_asked_for() -> None:
    seen: list[int] = []

    async def main(loop: SimLoop) -> None:
        for n in range(10):
            loop.call_soon(seen.append, n)
        await asyncio.sleep(0)

    run(main)

    assert seen == list(range(10))


def test_the_alarm_comes_before_the_step_that_it_is_set_for() -> None:
    at: list[int] = []

    async def main(loop: SimLoop) -> None:
        def ring() -> None:
            at.append(loop.steps)
            loop.alarm_at = None

        loop.alarm_at, loop.alarm = 5, ring
        for _ in range(10):
            await asyncio.sleep(0)

    run(main)

    assert at == [5]


def test_who_waits_for_what_nobody_will_do_is_stuck() -> None:
    async def main(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(StuckError, match="no timer"):
        run(main)


def test_a_bound_of_steps_and_of_time_ends_what_does_not_end() -> None:
    async def spin(loop: SimLoop) -> None:
        for _ in range(10_000):
            await asyncio.sleep(0)

    async def wait(loop: SimLoop) -> None:
        await asyncio.sleep(1_000)

    with pytest.raises(StuckError, match="steps"):
        run(spin)
    with pytest.raises(StuckError, match="time"):
        run(wait)


def test_an_exception_that_nobody_looks_at_is_told() -> None:
    async def fail() -> None:
        raise ValueError("odd")

    async def main(loop: SimLoop) -> None:
        loop.spawn(loop.add("w1"), fail())
        await asyncio.sleep(1)

    loop = run(main)

    assert [repr(error) for error in loop.unheard_exceptions()] == ["ValueError('odd')"]


def test_tasks_are_walked_through_in_the_order_in_which_they_were_made() -> None:
    walked: list[list[int]] = []

    async def main(loop: SimLoop) -> None:
        made = [loop.create_task(asyncio.sleep(0)) for _ in range(50)]
        walked.append([made.index(task) for task in set(made)])
        await asyncio.wait(made)

    run(main)
    run(main)

    assert walked[0] == walked[1]
