"""Views over several workers, with real HTTP between them and rows from memory."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from aiohttp import web

from bookstore_streams.engine.tables import PARKED_KEYS, PARKED_MESSAGES
from bookstore_streams.web import cluster, rows
from tests.unit.view_stand import (
    NOW_MS,
    MemoryEngine,
    MemoryPartition,
    Stand,
    at_stand,
    piece,
    spread,
)

AWKWARD_KEYS = [
    "a/b",
    "ä",
    "a%2Fb",
    "..",
    ".",
    "%",
    "{x}",
    "a b",
    "a?b#c&d=e+f",
    "\n",
    "\0",
    "日/%25",
]


def parked_in(*keys: tuple[str, int]) -> MemoryPartition:
    partition = MemoryPartition()
    for key, due_ms in keys:
        partition.park(key, due_ms, messages=3)
    return partition


# -- the parking lot --------------------------------------------------------------------------


def test_the_list_shows_the_keys_of_all_workers_by_due_time() -> None:
    async def story(stand: Stand) -> None:
        for worker in (0, 1):
            status, document = await stand.get("/parking/", worker)
            assert status == 200
            assert [row["key"] for row in document["rows"]] == ["d", "a", "b", "c"]
            assert document["rows"][0] == {
                "consumer": "billing",
                "key": "d",
                "due_ms": 5,
                "attempts": 1,
                "count": 3,
                "oldest_ms": NOW_MS - 5_000,
                "cause": "TransientError: 503",
                "state": "running",
            }
            assert document["rows"][1]["state"] == "waiting"
            assert (document["cursor"], document["incomplete"]) == (None, [])

    last = parked_in(("d", 5))
    last.running.add(("billing", "d"))
    at_stand(story, *spread(parked_in(("c", 30)), parked_in(("a", 10), ("b", 10)), last))


def test_paging_shows_every_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "STEP_ROWS", 3)

    async def story(stand: Stand) -> None:
        pages = await stand.pages("/parking/", limit=7)
        assert [len(page) for page in pages] == [7] * 14 + [2]
        assert [row["due_ms"] for page in pages for row in page] == sorted(range(100))

    partitions = [MemoryPartition() for _ in range(5)]
    for n in range(100):
        partitions[n % 5].park(f"key-{n}", n)
    at_stand(story, *spread(*partitions))


def test_the_first_page_of_a_large_lot_holds_the_earliest(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many keys, in an order that has nothing to do with theirs, that most are let go early."""
    monkeypatch.setattr("bookstore_streams.web.parking.STEP_ROWS", 5)
    monkeypatch.setattr(rows, "STEP_ROWS", 5)

    async def story(stand: Stand) -> None:
        for limit in (1, 3, 10):
            _, document = await stand.get(f"/parking/?limit={limit}")
            assert [row["due_ms"] for row in document["rows"]] == list(range(limit))
        pages = await stand.pages("/parking/", limit=30)
        assert [row["due_ms"] for page in pages for row in page] == list(range(199))

    partition = MemoryPartition()
    for n in range(199):
        partition.park(f"key-{n:03}", n * 83 % 199)
    at_stand(story, MemoryEngine({0: partition}))


@pytest.mark.parametrize("key", AWKWARD_KEYS)
def test_any_key_is_found_from_any_worker(key: str) -> None:
    async def story(stand: Stand) -> None:
        for worker in (0, 1):
            status, document = await stand.get(f"/parking/billing/{piece(key)}/", worker)
            assert (status, document["key"]) == (200, key)
            dots = piece(key).replace(".", "%2E")
            status, document = await stand.get(f"/parking/billing/{dots}/", worker)
            assert (status, document["key"]) == (200, key)

    at_stand(story, *spread(parked_in(("other", 1)), parked_in((key, 2))))


def test_one_key_shows_its_attempts_and_messages_in_order() -> None:
    async def story(stand: Stand) -> None:
        status, document = await stand.get("/parking/billing/a/?limit=2", worker=1)
        assert status == 200
        assert document["history"] == [
            {
                "at_ms": NOW_MS,
                "attempt": 1,
                "message_id": "a-0",
                "cause": "TransientError: 503",
            }
        ]
        assert [m["message_id"] for m in document["messages"]] == ["a-0", "a-1"]
        assert document["messages"][0]["value"] == "{}"
        status, document = await stand.get(f"/parking/billing/a/?cursor={document['cursor']}")
        assert [m["message_id"] for m in document["messages"]] == ["a-2"]
        assert document["cursor"] is None

    at_stand(story, *spread(parked_in(("a", 1), ("ab", 1))))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/parking/billing/nobody/", 404),
        ("/parking/nobody/a/", 404),
        ("/parking/billing//", 404),
        ("/parking/billing/%ED%A0%80/", 404),
        ("/parking/billing/%FF/", 404),
        ("/parking/billing/a/?limit=0", 400),
        ("/parking/billing/a/?cursor=nonsense", 400),
        ("/parking/?limit=1001", 400),
        ("/parking/?cursor=nonsense", 400),
        ("/tables/nothing/", 404),
        ("/tables/nothing/a/", 404),
        ("/tables/payments/nobody/", 404),
        ("/tables/payments//", 404),
        ("/tables/payments/?limit=x", 400),
        ("/tables/payments/?cursor=WyJ4eCIsMV0", 400),  # ["xx", 1]: no hexadecimal
        (f"/tables/{PARKED_MESSAGES}/no-number/", 404),
        (f"/tables/{PARKED_MESSAGES}/billing%2Fa%2F99999999999999999999/", 404),
        ("/nowhere", 404),
    ],
)
def test_what_is_absent_or_wrong_is_told_in_json(path: str, status: int) -> None:
    async def story(stand: Stand) -> None:
        found, document = await stand.get(path)
        assert (found, list(document)) == (status, ["error"])

    at_stand(story, *spread(parked_in(("a", 1)), MemoryPartition()))


def test_writing_is_refused() -> None:
    async def story(stand: Stand) -> None:
        async with stand.session.post(f"{stand.urls[0]}/parking/") as response:
            assert response.status == 405
            assert response.headers["Allow"] == "GET, HEAD"
            assert "error" in orjson.loads(await response.read())

    at_stand(story, *spread(MemoryPartition()))


# -- workers that do not answer --------------------------------------------------------------


async def _silent(request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def _garbled(request: web.Request) -> web.Response:
    return web.Response(text="{")


async def _unknown(request: web.Request) -> web.Response:
    return web.json_response({"rows": [1, 2], "is_cut": False, "partitions": [1]})


async def _list(request: web.Request) -> web.Response:
    return web.json_response([])


async def _failing(request: web.Request) -> web.Response:
    return web.json_response({"rows": [], "is_cut": False, "partitions": [1]}, status=500)


async def _elsewhere(request: web.Request) -> web.Response:
    raise web.HTTPFound("/elsewhere")


@pytest.mark.parametrize("view", [_silent, _garbled, _unknown, _list, _failing, _elsewhere])
def test_a_worker_that_gives_no_proper_answer_is_named(
    view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "WORKER_S_MAX", 0.2)

    async def story(stand: Stand) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", view)
        other = await stand.listen(app)
        group = stand.groups[0]
        group.given = {**group.given, other: frozenset({1})}
        group.partition_count = 2
        status, document = await stand.get("/parking/")
        assert (status, document["incomplete"]) == (200, [other])
        assert [row["key"] for row in document["rows"]] == ["a"]
        status, document = await stand.get("/parking/billing/b/")
        assert (status, document["incomplete"]) == (503, [other])
        assert (await stand.get("/parking/billing/a/"))[0] == 200
        assert (await stand.get("/"))[0] == 200

    at_stand(story, MemoryEngine({0: parked_in(("a", 1))}))


def test_a_worker_that_is_gone_is_named() -> None:
    async def story(stand: Stand) -> None:
        gone = "http://127.0.0.1:1"
        group = stand.groups[0]
        group.given = {**group.given, gone: frozenset({1})}
        group.partition_count = 2
        assert (await stand.get("/tables/payments/"))[1]["incomplete"] == [gone]
        assert (await stand.get("/tables/payments/x/"))[0] == 503

    at_stand(story, MemoryEngine({0: MemoryPartition()}))


def test_a_partition_that_is_not_open_makes_its_worker_incomplete() -> None:
    async def story(stand: Stand) -> None:
        for worker in (0, 1):
            _, document = await stand.get("/parking/", worker)
            assert document["incomplete"] == [stand.urls[1]]
            assert (await stand.get("/parking/billing/b/", worker))[0] == 503
            assert (await stand.get("/parking/billing/a/", worker))[0] == 200

    at_stand(story, MemoryEngine({0: parked_in(("a", 1))}), MemoryEngine({1: None}))


def test_a_partition_that_nobody_has_is_named() -> None:
    async def story(stand: Stand) -> None:
        stand.groups[0].partition_count = 3
        _, document = await stand.get("/parking/")
        assert document["incomplete"] == ["partition 2: no worker"]

    at_stand(story, *spread(MemoryPartition(), MemoryPartition()))


def test_before_the_first_assignment_nobody_knows_whom_to_ask() -> None:
    async def story(stand: Stand) -> None:
        stand.groups[0].given = {}
        for path in (
            "/parking/",
            "/parking/billing/x/",
            "/tables/payments/",
            "/tables/payments/x/",
        ):
            assert (await stand.get(path))[0] == 503
        assert (await stand.get("/"))[0] == 200

    at_stand(story, MemoryEngine({}))


def test_a_worker_that_lost_its_lease_shows_nothing_of_its_own() -> None:
    """Another worker may have the partition already, and newer rows of it."""

    async def story(stand: Stand) -> None:
        stand.groups[1].lease = False
        for worker in (0, 1):
            _, document = await stand.get("/parking/", worker)
            assert [row["key"] for row in document["rows"]] == ["a"]
            assert document["incomplete"] == [stand.urls[1]]
            assert (await stand.get("/parking/billing/b/", worker))[0] == 503

    at_stand(story, *spread(parked_in(("a", 1)), parked_in(("b", 1))))


def test_a_partition_that_closes_while_it_is_read_is_not_taken_for_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "STEP_ROWS", 2)

    class Closing(MemoryEngine):
        looks = 0

        def open_partition(self, number: int) -> MemoryPartition | None:
            self.looks += 1
            return super().open_partition(number) if self.looks < 4 else None

    async def story(stand: Stand) -> None:
        _, document = await stand.get("/parking/")
        assert document["incomplete"] == stand.urls

    at_stand(story, Closing({0: parked_in(*((f"key-{n}", n) for n in range(20)))}))


# -- tables -----------------------------------------------------------------------------------


def payments(*keys: str) -> MemoryPartition:
    partition = MemoryPartition()
    for key in keys:
        partition.put("payments", key.encode(), orjson.dumps({"of": key}))
    return partition


def test_tables_are_listed() -> None:
    async def story(stand: Stand) -> None:
        _, document = await stand.get("/tables/")
        assert document["tables"][0] == {
            "name": "payments",
            "help": "The payment of each order.",
            "href": "/tables/payments/",
        }

    at_stand(story, MemoryEngine({}))


def test_rows_of_all_workers_come_in_order_of_their_keys() -> None:
    async def story(stand: Stand) -> None:
        pages = await stand.pages("/tables/payments/", limit=2)
        keys = [row["key"] for page in pages for row in page]
        assert keys == ["a", "b", "b", "ba", "c/ä", "d"]
        assert pages[0][0] == {"key": "a", "value": {"of": "a"}}
        (page,) = await stand.pages("/tables/payments/?prefix=b", limit=9)
        assert [row["key"] for row in page] == ["b", "b", "ba"]
        (page,) = await stand.pages("/tables/payments/?prefix=c%2F%C3%A4", limit=9)
        assert [row["key"] for row in page] == ["c/ä"]

    at_stand(story, *spread(payments("a", "b", "c/ä"), payments("b", "d"), payments("ba")))


def test_a_page_of_large_rows_ends_early_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bookstore_streams.web.table.STEP_BYTES", 100)
    keys = [f"key-{n:03}" for n in range(60)]

    async def story(stand: Stand) -> None:
        pages = await stand.pages("/tables/payments/", limit=50)
        assert [row["key"] for page in pages for row in page] == keys
        assert len(pages) > 2

    at_stand(story, *spread(payments(*keys[::3]), payments(*keys[1::3]), payments(*keys[2::3])))


@pytest.mark.parametrize("key", ["", *AWKWARD_KEYS])
def test_any_row_is_found_from_any_worker(key: str) -> None:
    async def story(stand: Stand) -> None:
        for worker in (0, 1):
            found = await stand.get(f"/tables/payments/{piece(key)}/", worker)
            assert found == (200, {"key": key, "value": {"of": key}})

    at_stand(story, *spread(payments("other"), payments(key)))


def test_a_row_that_cannot_be_read_hides_no_other() -> None:
    broken = payments("b")
    broken.put("payments", b"a", b"{")

    async def story(stand: Stand) -> None:
        _, document = await stand.get("/tables/payments/")
        first, second = document["rows"]
        assert (first["key"], first["value"]) == ("a", None)
        assert "error" in first
        assert second == {"key": "b", "value": {"of": "b"}}

    at_stand(story, MemoryEngine({0: broken}))


# -- health and start page --------------------------------------------------------------------


def test_live_needs_nothing() -> None:
    async def story(stand: Stand) -> None:
        stand.groups[0].given = {}
        assert await stand.get("/health/live") == (200, {"status": "live"})

    at_stand(story, MemoryEngine({}))


def test_ready_means_that_every_partition_given_to_the_worker_is_open() -> None:
    async def story(stand: Stand) -> None:
        group, engine = stand.groups[0], stand.engines[0]
        status, document = await stand.get("/health/ready")
        assert (status, document["status"]) == (503, "not ready")
        assert document["reason"] == "Partitions are not open yet: 1."
        assert [each["is_ready"] for each in document["partitions"]] == [True, False]

        engine.partitions[1] = MemoryPartition()
        status, document = await stand.get("/health/ready")
        assert (status, document["status"], document["reason"]) == (200, "ready", None)

        group.rebalancing = True
        assert (await stand.get("/health/ready"))[0] == 503
        group.rebalancing, group.lease = False, False
        assert (await stand.get("/health/ready"))[0] == 503
        group.lease = True
        engine.partitions.clear()  # given to it, and nothing done about it yet
        assert (await stand.get("/health/ready"))[0] == 503

    at_stand(story, MemoryEngine({0: MemoryPartition(), 1: None}))


def test_a_worker_without_partitions_is_ready_once_the_group_knows_it() -> None:
    async def story(stand: Stand) -> None:
        assert (await stand.get("/health/ready"))[0] == 200
        stand.groups[0].given = {}
        assert (await stand.get("/health/ready"))[0] == 503

    at_stand(story, MemoryEngine({}))


def test_the_start_page_counts_what_is_parked_everywhere() -> None:
    async def story(stand: Stand) -> None:
        status, document = await stand.get("/")
        assert status == 200
        assert document["parked"] == {
            "keys": 3,
            "messages": 9,
            "oldest_ms": NOW_MS - 5_000,
            "oldest_age_ms": 5_000,
        }
        assert [each["url"] for each in document["workers"]] == sorted(stand.urls)
        assert document["incomplete"] == []
        for link in document["links"].values():
            assert (await stand.get(link))[0] == 200

    at_stand(story, *spread(parked_in(("a", 1)), parked_in(("b", 1), ("c", 1))))


def test_a_view_that_fails_says_so_in_json(caplog: pytest.LogCaptureFixture) -> None:
    broken = MemoryPartition()
    broken.put(PARKED_KEYS, b"billing\0a", b"{")

    async def story(stand: Stand) -> None:
        status, document = await stand.get("/parking/")
        assert (status, list(document)) == (500, ["error"])

    at_stand(story, MemoryEngine({0: broken}))
    assert "JSONDecodeError" in caplog.text
