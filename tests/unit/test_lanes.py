"""Runnable lanes and the tasks that wait for one."""

from __future__ import annotations

import asyncio

from bookstore_streams.core.record import StoredRecord
from bookstore_streams.core.watermark import Slot
from bookstore_streams.engine.consumer import Consumer
from bookstore_streams.engine.lanes import Arrival, Lane, RunQueue
from bookstore_streams.testing.virtual_time import run


async def handle(event: object, context: object) -> None:
    pass


CONSUMER = Consumer("billing", ("orders",), handle, "billing.dlt")


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def lane(key: str) -> Lane:
    return Lane(CONSUMER, key, None)


def arrival(number: int) -> Arrival:
    record = StoredRecord("orders", 0, number, 0, b"a", b"{}", ())
    return CONSUMER, record, Slot(number + 1, 1)


def test_lanes_are_given_out_first_come_first_served() -> None:
    async def main() -> list[object]:
        queue, lanes = RunQueue(), [lane(key) for key in "abc"]
        for each in lanes:
            queue.add(each)
        assert [queue.next() for _ in range(3)] == lanes
        return [queue.next()]

    assert run(main()) == [None]


def test_records_are_given_out_in_arrival_order_and_by_turns_with_lanes() -> None:
    async def main() -> None:
        queue, lanes, records = RunQueue(), [lane(key) for key in "ab"], [*map(arrival, range(4))]
        queue.arrivals.extend(records)
        for each in lanes:
            queue.add(each)
        given = [queue.next() for _ in range(6)]
        assert given == [records[0], lanes[0], records[1], lanes[1], records[2], records[3]]

    run(main())


def test_a_busy_lane_is_not_added_again() -> None:
    async def main() -> None:
        queue, only = RunQueue(), lane("a")
        queue.add(only)
        queue.add(only)
        assert queue.next() is only
        queue.add(only)  # it is being run
        assert queue.next() is None
        only.is_busy = False
        queue.add(only)
        assert queue.next() is only

    run(main())


def test_nothing_is_given_out_while_it_is_held() -> None:
    async def main() -> None:
        queue, only = RunQueue(), lane("a")
        queue.add(only)
        queue.hold()
        waiting = asyncio.create_task(queue.wait())
        await let_others_run()
        queue.arrivals.append(arrival(0))
        assert queue.next() is None
        queue.go_on()
        await waiting
        assert queue.next() is not None

    run(main())


def test_one_task_is_woken_at_a_time_and_only_for_work() -> None:
    async def main() -> None:
        queue = RunQueue()
        tasks = [asyncio.create_task(queue.wait()) for _ in range(5)]
        await let_others_run()
        queue.wake()
        await let_others_run()
        assert not any(task.done() for task in tasks)
        queue.add(lane("a"))
        queue.wake()
        await let_others_run()
        assert [task.done() for task in tasks] == [True, False, False, False, False]
        for task in tasks:
            task.cancel()

    run(main())


def test_a_wake_up_is_not_lost_on_a_task_that_was_cancelled() -> None:
    async def main() -> None:
        queue = RunQueue()
        gone, waiting = (asyncio.create_task(queue.wait()) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        queue.add(lane("a"))
        queue.wake()
        await waiting

    run(main())
