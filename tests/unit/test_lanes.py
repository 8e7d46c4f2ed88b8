"""Runnable lanes and the tasks that wait for one."""

from __future__ import annotations

import asyncio

from bookstore_streams.engine.consumer import Consumer
from bookstore_streams.engine.lanes import Lane, RunQueue
from bookstore_streams.testing.virtual_time import run


async def handle(event: object, context: object) -> None:
    pass


CONSUMER = Consumer("billing", ("orders",), handle, "billing.dlt")


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def lane(key: str) -> Lane:
    return Lane(CONSUMER, key, None)


def test_lanes_are_taken_first_come_first_served() -> None:
    async def main() -> list[str | None]:
        queue = RunQueue()
        for key in "abc":
            queue.add(lane(key))
        return [(await queue.take()).key for _ in range(3)]

    assert run(main()) == ["a", "b", "c"]


def test_a_busy_lane_is_not_added_again() -> None:
    async def main() -> None:
        queue, only = RunQueue(), lane("a")
        queue.add(only)
        queue.add(only)
        assert await queue.take() is only
        queue.add(only)  # it is being run
        waiting = asyncio.create_task(queue.take())
        await let_others_run()
        assert not waiting.done()
        only.is_busy = False
        queue.add(only)
        queue.wake()
        assert await waiting is only

    run(main())


def test_one_wake_up_is_passed_on_while_there_is_work() -> None:
    async def main() -> None:
        queue, taken = RunQueue(), []

        async def work() -> None:
            taken.append(await queue.take())
            await asyncio.Event().wait()

        tasks = [asyncio.create_task(work()) for _ in range(5)]
        await asyncio.sleep(0)
        for key in "abc":
            queue.add(lane(key))
        queue.wake()
        await let_others_run()
        assert [each.key for each in taken] == ["a", "b", "c"]
        for task in tasks:
            task.cancel()

    run(main())


def test_a_wake_up_is_not_lost_on_a_task_that_was_cancelled() -> None:
    async def main() -> None:
        queue = RunQueue()
        gone, waiting = (asyncio.create_task(queue.take()) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        queue.add(lane("a"))
        queue.wake()
        assert (await waiting).key == "a"

    run(main())
