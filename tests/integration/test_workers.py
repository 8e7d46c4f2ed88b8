"""Workers that come, go and die, and what a message may expect of them."""

from __future__ import annotations

import asyncio
import select
import shutil
import socket
import textwrap
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bookstore_streams.errors import LeaseLostError
from bookstore_streams.providers.payment import PaymentProvider
from bookstore_streams.testing.brokers import Broker, KafkaBroker
from tests.chaos.shop import (
    DEAD_LETTERS,
    PAYMENTS,
    ROOT,
    Shop,
    Tail,
    WorkerProcess,
    cancelled,
    pause,
    placed,
    until,
)

UniqueName = Callable[[str], str]

SESSION_S = 6.0
POLICY = {
    "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "500",
    "BOOKSTORE_BILLING_BACKOFF_FACTOR": "1",
    "BOOKSTORE_BILLING_JITTER": "none",
    "BOOKSTORE_BILLING_ATTEMPTS_MAX": "3",
}
DOWN = {"status": 503}


def test_sigterm_lets_calls_in_flight_end_and_commits_them(broker: Broker, tmp_path: Path) -> None:
    asyncio.run(_drain(broker, tmp_path))


async def _drain(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder) as shop, Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        control = shop.provider.control
        control.default(delay_ms=1_500)
        orders = [shop.key_in(number % 8, "order") for number in range(80)]
        before = len(control.calls())
        for order in orders:
            await shop.send(order, placed(order), f"{order}/1")
        await until(lambda: len(control.calls()) >= before + 20, 10, worker.tail)

        started = time.monotonic()
        assert await worker.stop() == 0
        assert time.monotonic() - started < 10

        called = {call["order_id"] for call in control.calls()[before:]}
        await tail.to_end()
        captured = {record.key for record in tail.of(PAYMENTS, *orders)}
        assert captured == called, "a call in flight was not waited for"
        worker.start()
        await worker.is_ready()
        await tail.until(PAYMENTS, len(orders), 30, *orders)
        assert sorted(r.key or "" for r in tail.of(PAYMENTS, *orders)) == sorted(orders)
        calls = [call["result"] for call in control.calls()[before:]]
        assert calls == ["booked"] * len(orders)
        assert await worker.stop() == 0


def test_sigterm_does_not_wait_for_a_provider_that_never_answers(
    broker: Broker, tmp_path: Path
) -> None:
    asyncio.run(_leave_hanging(broker, tmp_path))


async def _leave_hanging(broker: Broker, folder: Path) -> None:
    settings = {"BOOKSTORE_PAYMENT_TIMEOUT_MS": "25000"}
    async with Shop(broker, folder, settings) as shop, Tail(shop, [PAYMENTS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        orders = [shop.key_in(number, "order") for number in range(8)]
        for order in orders:
            shop.provider.control.script(order, {"timeout": True})
            await shop.send(order, placed(order), f"{order}/1")
        for order in orders:
            await until(_has_calls(shop, order, 1), 10, worker.tail)
        started = time.monotonic()
        assert await worker.stop() == 0
        assert time.monotonic() - started < 10
        worker.start()
        await tail.until(PAYMENTS, len(orders), 30, *orders)
        assert await worker.stop() == 0


def _has_calls(shop: Shop, order: str, count: int) -> Callable[[], Any]:
    async def has_calls() -> bool:
        return len(await shop.calls(order)) >= count

    return has_calls


@pytest.mark.kafka
def test_keys_of_a_killed_worker_go_on_elsewhere_within_the_session_and_five_seconds(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Where the time went is printed: the session, telling the others, joining, opening, work."""
    asyncio.run(_take_over(kafka, tmp_path))


def parts(worker: WorkerProcess, killed_at: datetime) -> dict[str, float]:
    """Seconds from the kill until the other worker's log says so."""
    signs = {
        "told of the rebalance": "Revoking previously assigned partitions",
        "in the new generation": "Joined group",
        "first partition open": ": open after",
    }
    found = {}
    for part, sign in signs.items():
        times = [
            datetime.strptime(line[1:24], "%Y-%m-%d %H:%M:%S,%f").astimezone()
            for line in worker.text().splitlines()
            if sign in line
        ]
        after = [at for at in times if at > killed_at]
        if after:
            found[part] = round((after[0] - killed_at).total_seconds(), 2)
    return found


async def _take_over(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, POLICY) as shop, Tail(shop, [PAYMENTS]) as tail:
        killed, stays = shop.worker("killed"), shop.worker("stays")
        for worker in (killed, stays):
            worker.start()
            await worker.is_ready()
        await shop.warm_up(killed, stays)
        parked = [shop.key_in(number, "parked") for number in range(8)]
        for order in parked:
            shop.provider.control.script(order, DOWN)
            await shop.send(order, placed(order), f"{order}/1")
            await until(_has_calls(shop, order, 1), 10, stays.tail)
        killed.kill()
        killed_at, killed_on = time.monotonic(), datetime.now().astimezone()
        fresh = [shop.key_in(number, "fresh") for number in range(8)]
        for order in fresh:
            await shop.send(order, placed(order), f"{order}/1")
        await tail.until(PAYMENTS, 16, 60, *fresh, *parked)
        took_s = time.monotonic() - killed_at
        found = parts(stays, killed_on) | {"all handled": round(took_s, 2)}
        print(f"seconds after the kill, with a session of {SESSION_S} s: {found}")
        assert len(found) == 4, found
        assert took_s <= SESSION_S + 5, found
        assert await stays.stop() == 0


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_a_killed_worker_that_is_started_again_keeps_nobody_waiting_for_its_session(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Else the group would wait for the dead one until its session ends, and nobody would work."""
    asyncio.run(_start_again(kafka, tmp_path))


async def _start_again(broker: Broker, folder: Path) -> None:
    session_s = 90.0
    settings = {
        "BOOKSTORE_BROKER_SESSION_TIMEOUT_MS": str(int(session_s * 1_000)),
        "BOOKSTORE_BROKER_REQUEST_TIMEOUT_MS": str(int(session_s * 1_000)),
    }
    async with Shop(broker, folder, settings) as shop, Tail(shop, [PAYMENTS]) as tail:
        killed, stays = shop.worker("killed"), shop.worker("stays")
        for worker in (killed, stays):
            worker.start()
            await worker.is_ready()
        await shop.warm_up(killed, stays)
        killed.kill()
        killed_at = time.monotonic()
        killed.start()
        orders = [shop.key_in(number, "order") for number in range(8)]
        for order in orders:
            await shop.send(order, placed(order), f"{order}/1")
        await tail.until(PAYMENTS, 8, 2 * session_s, *orders)
        took_s = time.monotonic() - killed_at
        print(f"all keys went on after {took_s:.1f} s, with a session of {session_s:.0f} s")
        assert took_s < session_s / 2
        assert "it has left the group now" in killed.text()
        assert await stays.stop() == 0
        assert await killed.stop() == 0


@pytest.mark.kafka
def test_a_rebalance_during_a_back_off_keeps_attempts_and_due_time(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Goal: a parked key moves from worker to worker and is tried when it was due anyway.

    Method: 12 s of back-off, in which a second worker joins, the first leaves for good, and a
    third one without any disk takes over.
    """
    asyncio.run(_move_while_parked(kafka, tmp_path))


async def _move_while_parked(broker: Broker, folder: Path) -> None:
    settings = {**POLICY, "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "12000"}
    async with Shop(broker, folder, settings) as shop, Tail(shop, [PAYMENTS]) as tail:
        first, second = shop.worker("first"), shop.worker("second")
        first.start()
        await shop.warm_up(first)
        orders = [shop.key_in(number, "order") for number in range(8)]
        for order in orders:
            shop.provider.control.script(order, DOWN)
            await shop.send(order, placed(order), f"{order}/1")
            await shop.send(order, cancelled(order), f"{order}/2")
        await until(lambda: _counts(first) == [2] * 8, 10, first.tail)
        before = _parked(first)
        second.start()
        await second.is_ready()
        assert await first.stop() == 0
        await until(lambda: len(_parked(second)) == 8, 10, second.tail)
        after = _parked(second)
        for order in orders:
            kept = ("attempts", "due_ms", "count", "oldest_ms", "cause")
            assert {n: after[order][n] for n in kept} == {n: before[order][n] for n in kept}
            assert (after[order]["attempts"], after[order]["count"]) == (1, 2)
        await tail.until(PAYMENTS, 16, 30, *orders)
        for order in orders:
            failed, charged, refunded = await shop.calls(order)
            assert charged["at_ms"] - before[order]["due_ms"] in range(-5, 500)
            assert charged["at_ms"] - failed["at_ms"] >= 12_000
            assert refunded["operation"] == "refund"
        assert await second.stop() == 0


def _counts(worker: WorkerProcess) -> list[int]:
    return [row["count"] for row in _parked(worker).values()]


def _parked(worker: WorkerProcess) -> dict[str, dict[str, Any]]:
    """Parked keys as the worker shows them, by key."""
    _, page = worker.get("/parking/")
    return {row["key"]: row for row in page["rows"]}


@pytest.mark.kafka
@pytest.mark.slow
def test_scaling_from_one_worker_to_two_repeats_nothing(kafka: KafkaBroker, tmp_path: Path) -> None:
    """Stock Faust applied 147 of 6,000 messages twice here.

    What stays with the first worker is not opened again when the second comes and goes.
    """
    asyncio.run(_scale(kafka, tmp_path))


async def _scale(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder) as shop, Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
        first, second = shop.worker("first"), shop.worker("second")
        first.start()
        await shop.warm_up(first)
        orders = [f"{shop.app_id}-{number}" for number in range(2_000)]
        feeding = asyncio.create_task(_feed(shop, orders))
        await tail.until(PAYMENTS, 200, 30)
        second.start()
        await second.is_ready()
        assert first.text().count(STAYS) == first.text().count(OPENED) // 2 == 4
        await feeding
        await tail.until(PAYMENTS, len(orders), 60, *orders)
        await until(shop.has_no_lag, 10, second.tail)
        await tail.to_end()
        assert len(tail.of(PAYMENTS, *orders)) == len(orders)
        assert {record.key for record in tail.of(PAYMENTS, *orders)} == set(orders)
        results = [c["result"] for c in shop.provider.control.calls() if c["order_id"] in orders]
        assert results == ["booked"] * len(orders)
        assert await second.stop() == 0
        await until(lambda: first.text().count(OPENED) == 12, 30, first.tail)
        assert first.text().count(STAYS) == 8
        assert await first.stop() == 0


STAYS = ": stays, nothing of it was closed"
OPENED = ": open after"


async def _feed(shop: Shop, orders: list[str]) -> None:
    """About 200 orders a second."""
    for number, order in enumerate(orders):
        await shop.enqueue(order, placed(order), f"{order}/1")
        if number % 10 == 9:
            await pause(0.05)
    await shop.producer.flush()


@pytest.mark.kafka
@pytest.mark.parametrize("is_wiped", [False, True], ids=["same disk", "wiped disk"])
def test_a_slow_first_message_survives_a_crash_behind_faster_ones(
    kafka: KafkaBroker, tmp_path: Path, is_wiped: bool
) -> None:
    """Goal: the offset never passes a message in flight, and what is done is not done again."""
    asyncio.run(_slow_first(kafka, tmp_path, is_wiped))


async def _slow_first(broker: Broker, folder: Path, is_wiped: bool) -> None:
    async with Shop(broker, folder) as shop, Tail(shop, [PAYMENTS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        slow, *quick = [shop.key_in(4, "order") for _ in range(20)]
        shop.provider.control.script(slow, {"timeout": True})
        at = await shop.send(slow, placed(slow), f"{slow}/1")
        for order in quick:
            await shop.send(order, placed(order), f"{order}/1")
        await tail.until(PAYMENTS, len(quick), 10, *quick)
        assert (await shop.committed())[4] <= at.offset
        worker.kill()
        assert (await shop.committed())[4] <= at.offset
        if is_wiped:
            worker.wipe()
        worker.start()
        await tail.until(PAYMENTS, 1, 30, slow)
        await until(shop.has_no_lag, 10, worker.tail)
        assert [len(await shop.calls(order)) for order in (slow, *quick)] == [2] + [1] * len(quick)
        await tail.to_end()
        assert len(tail.of(PAYMENTS, slow, *quick)) == 1 + len(quick)
        assert await worker.stop() == 0


@pytest.mark.kafka
def test_a_later_success_commits_past_an_earlier_failure_only_once_that_is_parked(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    """Goal: the failed one is in the changelog before its offset is passed: the disk may go."""
    asyncio.run(_failure_then_success(kafka, tmp_path))


async def _failure_then_success(broker: Broker, folder: Path) -> None:
    settings = {**POLICY, "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "8000"}
    async with Shop(broker, folder, settings) as shop, Tail(shop, [PAYMENTS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        fails, works = shop.key_in(1, "fails"), shop.key_in(1, "works")
        shop.provider.control.script(fails, DOWN)
        await shop.send(fails, placed(fails), f"{fails}/1")
        await shop.send(works, placed(works), f"{works}/1")
        await until(shop.has_no_lag, 10, worker.tail)
        worker.kill()
        worker.wipe()
        worker.start()
        await tail.until(PAYMENTS, 2, 40, fails, works)
        assert [len(await shop.calls(order)) for order in (fails, works)] == [2, 1]
        assert await worker.stop() == 0


def test_the_lease_is_looked_at_once_the_connection_is_there() -> None:
    """Goal: a worker frozen while it connects makes no call when it wakes up without its lease.

    Method: whoever listens shows the kernel's finished connection before it takes it.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        asyncio.run(_look_when_connected(listening))


async def _look_when_connected(listening: socket.socket) -> None:
    connected: list[bool] = []

    def before_call() -> None:
        readable, _, _ = select.select([listening], [], [], 0)
        connected.append(bool(readable))
        raise LeaseLostError("gone")

    provider = PaymentProvider(f"http://127.0.0.1:{listening.getsockname()[1]}", 1_000, 1)
    try:
        with pytest.raises(LeaseLostError):
            await provider.charge("order", "1.00", "EUR", before_call=before_call)
    finally:
        await provider.close()
    assert connected == [True]


# -- consumers of a test's own ---------------------------------------------------------------


def app_root(folder: Path, sources: Mapping[str, str], consumers: tuple[str, ...]) -> Path:
    """A deployment like ours with more modules in it: path -> source."""
    root = folder / "root"
    for part in ("agents", "tables", "config"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, root / part, ignore=ignored)
    for path, source in sources.items():
        (root / path).write_text(textwrap.dedent(source))
    with (root / "config" / "default.toml").open("a") as config:
        config.writelines(f"\n[consumers.{name}]\n" for name in consumers)
    return root


RAISING = """
    from bookstore_streams import app

    class Silent(Exception):
        pass

    class Unprintable(Exception):
        def __str__(self):
            raise ValueError("no text")

    class Fatal(BaseException):
        pass

    @app.consume("{topic}", name="raising", emits=("{topic}.out",))
    async def raising(event, context):
        match event["raise"]:
            case "silent":
                raise Silent
            case "unprintable":
                raise Unprintable
            case "surrogate":
                raise RuntimeError("half a pair: \\ud800")
            case "long":
                raise RuntimeError("x" * 5000)
            case "fatal":
                raise Fatal("not even an Exception")
            case "cancelled":
                import asyncio
                raise asyncio.CancelledError
            case "exit":
                raise SystemExit(3)
            case "late":
                context.emit("{topic}.out", {{"type": "Never"}})
                raise KeyError("after an event was emitted")
        context.emit("{topic}.out", {{"type": "Fine"}})
"""


def test_a_handler_that_raises_anything_is_classified_and_never_acknowledged_silently(
    broker: Broker, tmp_path: Path, unique_name: UniqueName
) -> None:
    asyncio.run(_raise_everything(broker, tmp_path, unique_name("raise")))


async def _raise_everything(broker: Broker, folder: Path, topic: str) -> None:
    root = app_root(folder, {"agents/raising.py": RAISING.format(topic=topic)}, ("raising",))
    out, dlt = f"{topic}.out", "bookstore.orders.raising.dlt"
    settings = {"BOOKSTORE_APP_ROOT": str(root)}
    expected = {
        "silent": ("Silent", ""),
        "unprintable": ("Unprintable", "(its text could not be read: ValueError)"),
        "surrogate": ("RuntimeError", "half a pair: \\ud800"),
        "long": ("RuntimeError", "x" * 1_000),
        "fatal": ("Fatal", "not even an Exception"),
        "cancelled": ("CancelledError", ""),
        "exit": ("SystemExit", "3"),
        "late": ("KeyError", "'after an event was emitted'"),
    }
    async with Shop(broker, folder, settings) as shop:
        worker = shop.worker()
        worker.start()
        await worker.is_ready()
        async with Tail(shop, [out, dlt]) as tail:
            for kind in (*expected, "nothing"):
                await shop.send(f"{topic}-{kind}", {"raise": kind}, f"{topic}/{kind}", topic=topic)
            keys = {f"{topic}-{kind}": kind for kind in expected}
            letters = await tail.until(dlt, len(expected), 20, *keys)
            found = {
                keys[r.key or ""]: (
                    r.headers["dlt-exception-type"],
                    r.headers["dlt-exception-message"],
                )
                for r in letters
            }
            assert found == expected
            assert {(r.headers["dlt-reason"], r.headers["retry-attempt"]) for r in letters} == {
                ("permanent", "1")
            }
            (fine,) = await tail.until(out, 1, 20)
            assert fine.event["type"] == "Fine"
        assert await worker.stop() == 0


COUNTING = """
    from bookstore_streams import app

    counts = app.Table("counts", help="How many messages a key had.")

    @app.consume({topics}, name="counting", emits=("{out}",))
    async def counting(event, context):
        count = counts.get(context.key, 0) + 1
        counts[context.key] = count
        context.emit("{out}", {{"type": "Counted", "n": event["n"], "count": count}})
"""


@pytest.mark.kafka
def test_three_topics_of_one_consumer_are_all_read_to_the_end(
    kafka: KafkaBroker, tmp_path: Path, unique_name: UniqueName
) -> None:
    """A public report tells of 999 messages on three topics of which some never came."""
    asyncio.run(_three_topics(kafka, tmp_path, unique_name("three")))


async def _three_topics(broker: Broker, folder: Path, name: str) -> None:
    topics, out = [f"{name}.{letter}" for letter in "abc"], f"{name}.out"
    source = COUNTING.format(topics=", ".join(map(repr, topics)), out=out)
    root = app_root(folder, {"agents/counting.py": source}, ("counting",))
    async with Shop(broker, folder, {"BOOKSTORE_APP_ROOT": str(root)}) as shop:
        for topic in topics:
            await shop.make_topic(topic)
        for n in range(333):
            for topic in topics:
                await shop.enqueue(f"key-{n % 17}", {"n": n}, f"{topic}/{n}", topic=topic)
        await shop.producer.flush()
        worker = shop.worker()
        worker.start()
        await worker.is_ready()
        async with Tail(shop, [out]) as tail:
            records = await tail.until(out, 999, 40)
            await tail.to_end()
            assert len(records) == len(tail.records) == 999
            counts: dict[str, list[int]] = {}
            for record in tail.records:
                counts.setdefault(record.key or "", []).append(record.event["count"])
            for seen in counts.values():
                assert seen == list(range(1, len(seen) + 1))
        assert await worker.stop() == 0


@pytest.mark.kafka
@pytest.mark.slow
def test_a_count_is_exact_after_kills_in_the_middle_of_it(
    kafka: KafkaBroker, tmp_path: Path, unique_name: UniqueName
) -> None:
    asyncio.run(_count_through_kills(kafka, tmp_path, unique_name("count")))


async def _count_through_kills(broker: Broker, folder: Path, name: str) -> None:
    out, total, keys = f"{name}.out", 20_000, 50
    source = COUNTING.format(topics=repr(name), out=out)
    root = app_root(folder, {"agents/counting.py": source}, ("counting",))
    async with Shop(broker, folder, {"BOOKSTORE_APP_ROOT": str(root)}) as shop:
        for topic in (name, out):
            await shop.make_topic(topic)
        async with Tail(shop, [out]) as tail:
            feeding = asyncio.create_task(_feed_numbers(shop, name, total, keys))
            worker = shop.worker()
            for step in ("after-sends", "after-commit"):
                worker.start(at=(step, 12))
                await worker.ended(60)
            worker.start()
            await feeding
            await tail.until(out, total, 60)
            await tail.to_end()
            assert len(tail.records) == total
            found: dict[str, list[tuple[int, int]]] = {}
            for record in tail.records:
                event = record.event
                found.setdefault(record.key or "", []).append((event["n"], event["count"]))
            for seen in found.values():
                assert [count for _, count in seen] == list(range(1, total // keys + 1))
                assert [n for n, _ in seen] == sorted(n for n, _ in seen)
        assert await worker.stop() == 0


async def _feed_numbers(shop: Shop, topic: str, total: int, keys: int) -> None:
    for n in range(total):
        await shop.enqueue(f"key-{n % keys}", {"n": n}, f"{topic}/{n}", topic=topic)
        if n % 200 == 199:
            await pause(0.1)
    await shop.producer.flush()
