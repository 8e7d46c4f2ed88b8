"""The views of real workers: health over their lives, the parking lot and tables of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from bookstore_streams.testing.brokers import Broker
from tests.chaos.shop import Shop, WorkerProcess, cancelled, placed, until

# Parked keys stay parked for the whole test.
SETTINGS = {
    "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "600000",
    "BOOKSTORE_BILLING_BACKOFF_MS_MAX": "900000",
}
AWKWARD = ["a/b", "ä", "a%2Fb", "..", ".", "%", "{x}", "a b", "a?b#c&d=e+f"]


class Views:
    """Two workers of one shop, seen over HTTP only."""

    def __init__(self, shop: Shop, workers: Sequence[WorkerProcess], http: Any) -> None:
        self.shop = shop
        self.workers = workers
        self.http: aiohttp.ClientSession = http

    async def get(self, path: str, worker: int = 0, **params: Any) -> tuple[int, Any]:
        """Status and document of a path that goes out exactly as it stands."""
        query = "&".join(f"{name}={quote(str(value))}" for name, value in params.items())
        port = self.workers[worker].port
        url = URL(f"http://127.0.0.1:{port}{path}?{query}", encoded=True)
        async with self.http.get(url) as response:
            assert response.content_type == "application/json"
            return response.status, await response.json()

    async def is_ready(self, *numbers: int) -> bool:
        """Whether these workers are ready and know of no other."""
        for number in numbers:
            try:
                status, _ = await self.get("/health/ready", number)
                _, start = await self.get("/", number)
            except aiohttp.ClientError:
                return False
            if status != 200 or len(start["workers"]) != len(numbers) or start["incomplete"]:
                return False
        return True

    async def ready(self, *numbers: int) -> None:
        """Wait for it."""
        tails = [self.workers[number] for number in numbers]
        await until(lambda: self.is_ready(*numbers), 60, lambda: "\n".join(w.tail() for w in tails))

    async def park(self, *keys: str) -> None:
        """Park orders, each with its cancellation behind it."""
        control = self.shop.provider.control
        control.script_all(
            [
                {"order_id": key, "operation": "any", "steps": [{"status": 503}], "forever": True}
                for key in keys
            ]
        )
        for key in keys:
            await self.shop.send(key, placed(key), f"{key}|placed")
            await self.shop.send(key, cancelled(key), f"{key}|cancelled")

        async def is_parked() -> bool:
            rows = await self.rows("/parking/", limit=1000)
            waiting = {(r["key"], r["count"]) for r in rows}
            return waiting >= {(key, 2) for key in keys}

        await until(is_parked, 30, "all keys are parked with both messages")

    async def rows(self, path: str, worker: int = 0, limit: int = 100) -> list[dict[str, Any]]:
        """All rows of a list, page by page."""
        rows, cursor = [], ""
        while True:
            status, page = await self.get(path, worker, limit=limit, cursor=cursor)
            assert status == 200
            rows += page["rows"]
            if page["cursor"] is None:
                return rows
            cursor = page["cursor"]

    async def has_no_lag(self) -> bool:
        """Whether everything sent is committed."""
        return not await self.shop.lag()


Story = Callable[[Views], Awaitable[None]]


def at_shop(story: Story, broker: Broker, folder: Path, partitions: int = 8) -> None:
    """Run a story with two workers that are not started yet."""

    async def run() -> None:
        async with (
            Shop(broker, folder, SETTINGS, partitions=partitions) as shop,
            aiohttp.ClientSession() as http,
        ):
            await story(Views(shop, [shop.worker("a"), shop.worker("b")], http))

    asyncio.run(run())


def test_both_workers_show_what_is_parked_and_stored_on_either(
    broker: Broker, tmp_path: Path
) -> None:
    """Two workers share eight partitions; every view gives the same answer on both."""

    async def story(at: Views) -> None:
        for worker in at.workers:
            worker.start()
        await at.ready(0, 1)
        keys = [*AWKWARD, *(at.shop.key_in(number, "order") for number in range(8))]
        await at.park(*keys)
        healthy = [at.shop.key_in(number, "healthy") for number in range(8)]
        for key in healthy:
            await at.shop.send(key, placed(key), f"{key}|placed")
        await until(at.has_no_lag, 30, "everything is committed")
        for number in (0, 1):
            await shows_the_parking_lot(at, number, keys)
            await shows_the_tables(at, number, keys, healthy)
        for worker in at.workers:
            assert await worker.stop() == 0
            assert worker.tracebacks() == []

    at_shop(story, broker, tmp_path)


async def shows_the_parking_lot(at: Views, worker: int, keys: list[str]) -> None:
    rows = await at.rows("/parking/", worker, limit=5)
    assert sorted(row["key"] for row in rows) == sorted(keys)
    assert [row["due_ms"] for row in rows] == sorted(row["due_ms"] for row in rows)
    assert {(row["consumer"], row["state"]) for row in rows} == {("billing", "waiting")}
    assert all("503" in row["cause"] for row in rows)
    for key in keys:
        status, one = await at.get(f"/parking/billing/{quote(key, safe='')}/", worker)
        assert (status, one["key"], one["attempts"], one["count"]) == (200, key, 1, 2)
        ids = [message["message_id"] for message in one["messages"]]
        assert ids == [f"{key}|placed", f"{key}|cancelled"]
        assert [tried["message_id"] for tried in one["history"]] == ids[:1]
    assert (await at.get("/parking/billing/nobody/", worker))[0] == 404
    assert (await at.get("/parking/nobody/x/", worker))[0] == 404
    assert (await at.get("/parking/", worker, limit=0))[0] == 400
    assert (await at.get("/parking/", worker, cursor="x"))[0] == 400
    _, start = await at.get("/", worker)
    assert (start["parked"]["keys"], start["parked"]["messages"]) == (len(keys), 2 * len(keys))


async def shows_the_tables(at: Views, worker: int, keys: list[str], healthy: list[str]) -> None:
    _, tables = await at.get("/tables/", worker)
    names = {table["name"] for table in tables["tables"]}
    assert names >= {"payments", "inbox", "parked_keys", "parked_messages"}
    rows = await at.rows("/tables/payments/", worker, limit=3)
    assert [row["key"] for row in rows] == sorted(healthy)
    assert {row["value"]["status"] for row in rows} == {"captured"}
    status, row = await at.get(f"/tables/payments/{healthy[0]}/", worker)
    assert (status, row) == (200, next(each for each in rows if each["key"] == healthy[0]))
    rows = await at.rows("/tables/inbox/", worker, limit=7)
    assert len({row["key"] for row in rows}) == len(rows) == 2 * len(keys) + len(healthy)
    rows = [
        row
        for prefix in ("billing/healthy-", "billing/a/b|", "billing/a/b|p")
        for row in (await at.get("/tables/inbox/", worker, prefix=prefix))[1]["rows"]
    ]
    ids = [*sorted(f"{key}|placed" for key in healthy), "a/b|cancelled", "a/b|placed"]
    assert [row["key"] for row in rows] == [f"billing/{each}" for each in [*ids, "a/b|placed"]]
    rows = await at.rows("/tables/parked_messages/", worker)
    assert len(rows) == 2 * len(keys)
    path = f"/tables/parked_messages/{quote(rows[0]['key'], safe='')}/"
    assert (await at.get(path, worker)) == (200, rows[0])
    for key in keys:
        path = f"/tables/parked_keys/{quote(f'billing/{key}', safe='')}/"
        assert (await at.get(path, worker))[1]["value"]["count"] == 2
    assert (await at.get("/tables/payments/nobody/", worker))[0] == 404
    assert (await at.get("/tables/nothing/", worker))[0] == 404


@pytest.mark.kafka  # the embedded broker never gives up on a frozen member of a group
def test_an_answer_says_what_it_lacks_while_workers_come_freeze_and_die(
    kafka: Broker, tmp_path: Path
) -> None:
    """A second worker joins, freezes, thaws and is killed while both are asked all the time.

    Every answer is JSON with 200 or 503. A list never lacks a key without naming a worker, a
    parked key is never said to be absent, and in the end nothing is missing.
    """

    async def story(at: Views) -> None:
        a, b = at.workers
        a.start()
        await at.ready(0)
        keys = [at.shop.key_in(number, "order") for number in range(8)]
        await at.park(*keys)
        watch = Watch(at, keys)
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(watch.ask(0)), tasks.create_task(watch.ask(1))]
            b.start()
            await at.ready(0, 1)
            b.send(signal.SIGSTOP)
            await until(
                lambda: f"http://127.0.0.1:{b.port}" in watch.named, 30, "the frozen one is named"
            )
            await at.ready(0)
            b.send(signal.SIGCONT)
            await at.ready(0, 1)
            b.kill()
            await at.ready(0)
            for task in watching:
                task.cancel()
        rows = await at.rows("/parking/")
        assert {row["key"] for row in rows} == set(keys)
        assert watch.answers > 100
        assert await a.stop() == 0
        assert a.tracebacks() == []
        assert b.tracebacks() == []

    at_shop(story, kafka, tmp_path)


class Watch:
    """Asks workers again and again, whether they are there or not.

    Attributes:
        answers: so many came.
        named: everything that was ever named as missing.
    """

    def __init__(self, at: Views, keys: Sequence[str]) -> None:
        self._at = at
        self._keys = keys
        self.answers = 0
        self.named: set[str] = set()

    async def ask(self, worker: int) -> None:
        pause = asyncio.Event()
        for key in itertools.cycle(self._keys):
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await self._ask(worker, key)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pause.wait(), 0.02)

    async def _ask(self, worker: int, key: str) -> None:
        status, page = await self._at.get("/parking/", worker, limit=1000)
        if status == 200:
            self.named.update(page["incomplete"])
            shown = {row["key"] for row in page["rows"]}
            assert page["incomplete"] or shown == set(self._keys), page
        else:
            assert status == 503, page
        status, one = await self._at.get(f"/parking/billing/{key}/", worker)
        assert status in (200, 503), one
        status, health = await self._at.get("/health/ready", worker)
        assert status in (200, 503), health
        assert (await self._at.get("/health/live", worker))[0] == 200
        self.answers += 4


def test_a_worker_without_partitions_is_ready_and_shows_what_the_others_have(
    start_broker: Callable[[str], Broker], tmp_path: Path
) -> None:
    async def story(at: Views) -> None:
        for worker in at.workers:
            worker.start()
        await at.ready(0, 1)
        healths = [(await at.get("/health/ready", number))[1] for number in (0, 1)]
        assert sorted(len(health["partitions"]) for health in healths) == [0, 1]
        await at.park("order-1")
        for number in (0, 1):
            assert [row["key"] for row in await at.rows("/parking/", number)] == ["order-1"]
            assert (await at.get("/parking/billing/order-1/", number))[0] == 200
            assert (await at.get("/parking/billing/order-2/", number))[0] == 404

    at_shop(story, start_broker("embedded"), tmp_path, partitions=1)
