"""Connections between worker and broker that are held, and cut at every kind of request."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import product
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import Broker
from tests.chaos.campaign import DONE, Campaign, campaign
from tests.chaos.load import draw
from tests.chaos.proxy import BOTH, Api, Link, Way, When
from tests.chaos.shop import WorkerProcess, is_listening, until

# What a commit is made of, and the first request of all.
COMMITTING = (
    Api.PRODUCE,
    Api.ADD_PARTITIONS_TO_TXN,
    Api.ADD_OFFSETS_TO_TXN,
    Api.TXN_OFFSET_COMMIT,
    Api.END_TXN,
)
# These come only while a worker starts or leaves.
STARTING = (
    Api.METADATA,
    Api.FIND_COORDINATOR,
    Api.INIT_PRODUCER_ID,
    Api.JOIN_GROUP,
    Api.SYNC_GROUP,
    Api.LIST_OFFSETS,
    Api.OFFSET_FETCH,
    Api.LEAVE_GROUP,
)
RUNNING = (*COMMITTING, Api.FETCH, Api.HEARTBEAT)
#: size -> cuts
CUTS = {"small": 12, "full": 200}
#: size -> (orders, holds); the first holds are the shortest way to see everything
HOLDS = {"small": (80, 2), "full": (900, 30)}
SESSION_S = 6.0
# Long enough that many a retry falls due while somebody else has the key already.
BACKOFF = {
    "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "1000",
    "BOOKSTORE_BILLING_BACKOFF_MS_MAX": "2000",
}
HAPPENS_WITHIN_S = 180.0
BACKLOG_MAX = 12


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(3_600)
def test_a_connection_cut_at_any_request_or_answer_costs_nothing_but_time(
    calm_kafka: Broker, links: list[Link], tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """Goal: whichever request or answer is lost, what was asked for is done once.

    Method: a proxy resets the connection at a chosen kind of request, before the broker has it
    or with the answer on its way: a commit that happened and whose answer never came among them.
    """
    asyncio.run(_cut(calm_kafka, links, tmp_path, seed, CUTS[chaos_size]))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(3_600)
def test_connections_held_for_less_and_more_than_a_session_cost_nothing_but_time(
    calm_kafka: Broker, links: list[Link], tmp_path: Path, chaos_size: str, seed: int
) -> None:
    """Goal: a worker that the group has given up, and who has not heard of it, writes nothing.

    Method: of two workers one is cut off without a reset: nothing passes, or requests pass and
    answers do not. Then what was held arrives late, or is lost with the connections.
    """
    count, holds = HOLDS[chaos_size]
    asyncio.run(_hold(calm_kafka, links, tmp_path, seed, count, holds))


async def _cut(broker: Broker, links: list[Link], folder: Path, seed: int, cuts: int) -> None:
    source = random.Random(seed)
    async with campaign(broker, folder, seed, draw(seed, 40 * cuts, f"c{seed}")) as orders:
        worker = orders.shop.worker(link=links[0])
        worker.start()
        for api, when in _schedule(source, cuts):
            skips = source.randrange(3) if api in RUNNING else 0
            if api in STARTING:
                await orders.feed(2)
                await orders.progress(1, HAPPENS_WITHIN_S, worker)
            sprung = links[0].cut_at(api, when, skips)
            if api in STARTING:
                assert await worker.stop() == 0
                worker.start()
            started = time.monotonic()
            while not sprung.is_set():
                assert time.monotonic() - started < HAPPENS_WITHIN_S, (
                    f"seed {seed}: no {api.name} to cut {when.value}\n{worker.tail()}"
                )
                if orders.backlog() < BACKLOG_MAX:
                    await orders.feed(1)
                await asyncio.sleep(0.1)
            orders.shaken()
            DONE[f"connections cut {when.value}"] += 1
            await _start_if_it_gave_up(worker, api)
        await orders.feed(8)
        await orders.drained(180, worker)
        assert await worker.stop() == 0
        await orders.verdict([worker])


async def _start_if_it_gave_up(worker: WorkerProcess, api: Api) -> None:
    """A worker that loses the broker at its start ends, to be started again by a supervisor."""
    if api not in STARTING:
        return
    await until(
        lambda: is_listening(worker.port) or not worker.is_running(), HAPPENS_WITHIN_S, worker.tail
    )
    if not worker.is_running():
        assert worker.has_found_no_broker(), worker.tail(80)
        worker.start()


def _schedule(source: random.Random, cuts: int) -> list[tuple[Api, When]]:
    """Commits first, both ways, then the rest; starts cost most and come once in four rounds."""
    committing = list(product(COMMITTING, When))
    rest = list(product((Api.FETCH, Api.HEARTBEAT, *STARTING), When))
    source.shuffle(rest)
    schedule: list[tuple[Api, When]] = []
    while len(schedule) < cuts:
        schedule += committing + rest[:6]
        rest = rest[6:] + rest[:6]
    schedule = schedule[:cuts]
    source.shuffle(schedule)
    return schedule


async def _hold(
    broker: Broker, links: list[Link], folder: Path, seed: int, count: int, holds: int
) -> None:
    source = random.Random(seed)
    async with campaign(broker, folder, seed, draw(seed, count, f"h{seed}"), BACKOFF) as orders:
        workers = [
            orders.shop.worker(name, link=link)
            for name, link in zip(("a", "b"), links, strict=False)
        ]
        for worker in workers:
            worker.start()
        for hold in range(holds):
            await orders.feed(count // (holds + 1) - 5)
            await orders.progress(5, HAPPENS_WITHIN_S, *workers)
            # long, answers only and lost; short and released; long and released; short and lost
            held_s = source.uniform(0.5, 4) if hold % 2 else SESSION_S + source.uniform(2, 5)
            ways = BOTH if hold % 4 in (1, 2) else (Way.ANSWERS,)
            await _hold_one(orders, links[hold % 2], ways, held_s, is_lost=hold % 4 in (0, 3))
        await orders.feed()
        await orders.drained(180, *workers)
        for worker in workers:
            assert await worker.stop() == 0
        await orders.verdict(workers)


async def _hold_one(
    orders: Campaign, link: Link, ways: tuple[Way, ...], held_s: float, *, is_lost: bool
) -> None:
    """Hold one link while orders come; every second of it may end in calls that come again."""
    orders.shaken()
    DONE[
        "times that a worker's "
        + ("connections" if Way.REQUESTS in ways else "answers")
        + " were held"
    ] += 1
    link.hold(*ways)
    for _ in range(5):
        await orders.feed(1)
        await asyncio.sleep(held_s / 5)
        orders.shaken()
    if is_lost:
        link.lose()
    else:
        link.release()
    # The worker learns only now that its session or its commit is over.
    for _ in range(4):
        await asyncio.sleep(0.5)
        orders.shaken()
