"""The commands as a person types them: `faust -A bookstore_streams ...` against real brokers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from bookstore_streams.core.parking import parked_key
from bookstore_streams.testing.brokers import Broker
from tests.chaos.shop import ORDERS, PAYMENTS, ROOT, Shop, cancelled, placed, until

SETTINGS = {
    "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "600000",
    "BOOKSTORE_BILLING_BACKOFF_MS_MAX": "900000",
}
PLACE = ("orders", "place", "--customer", "c-1", "--currency", "EUR", "--line", "book-1:2:9.99")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str
    took_s: float

    @property
    def json(self) -> Any:
        """What it printed."""
        assert self.status == 0, self
        return json.loads(self.out)

    def failed_with(self, *words: str) -> bool:
        """Whether it failed with one line on stderr, nothing on stdout, and these words."""
        lines = self.err.splitlines()
        return (
            (self.status, self.out, len(lines)) == (1, "", 1)
            and lines[0].startswith("Error: ")
            and all(word in lines[0] for word in words)
        )


def faust(*args: str, env: Mapping[str, str] | None = None, before: tuple[str, ...] = ()) -> Done:
    """Run `faust -A bookstore_streams` to its end."""
    ours = {name: v for name, v in os.environ.items() if not name.startswith("BOOKSTORE_")}
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "faust", *before, "-A", "bookstore_streams", *args],
        cwd=ROOT,
        env={**ours, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return Done(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - started)


def at_shop(story: Callable[[Shop], Awaitable[None]], broker: Broker, folder: Path) -> None:
    async def run() -> None:
        async with Shop(broker, folder, SETTINGS) as shop:
            await story(shop)

    asyncio.run(run())


# -- orders and the parking lot ---------------------------------------------------------------


def test_an_order_placed_from_the_command_line_is_charged_and_refunded(
    broker: Broker, tmp_path: Path
) -> None:
    async def story(shop: Shop) -> None:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        order = f"cli/{uuid.uuid4()}"
        sent = faust(
            *PLACE, "--order-id", order, "--message-id", "m-1", "--json", env=shop.env
        ).json
        assert (sent["order_id"], sent["message_id"], sent["topic"]) == (order, "m-1", ORDERS)
        account = shop.provider.control.account
        await until(lambda: account(order).get("charged") == "19.98", 20, worker.tail)
        again = faust(
            *PLACE, "--order-id", order, "--message-id", "m-1", "--json", env=shop.env
        ).json
        assert (again["partition"], again["offset"]) == (sent["partition"], sent["offset"] + 1)
        done = faust("orders", "cancel", order, "--reason", "changed mind", env=shop.env)
        assert (done.status, done.err) == (0, "")
        assert f"bookstore.orders [[{sent['partition']}]] @{sent['offset'] + 2}" in done.out
        await until(lambda: account(order).get("refunded") == "19.98", 20, worker.tail)
        assert account(order)["charges"] == 1

    at_shop(story, broker, tmp_path)


def test_parked_keys_are_shown_without_any_worker(broker: Broker, tmp_path: Path) -> None:
    """Keys are parked and released, the worker is killed, and the changelogs tell the rest."""

    async def story(shop: Shop) -> None:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        assert faust("parked", "list", "--json", env=shop.env).json == []
        keys = ["a/b", "ä b", *(shop.key_in(number, "order") for number in range(8))]
        shop.provider.control.script_all(
            [
                {"order_id": key, "operation": "any", "steps": [{"status": 503}], "forever": True}
                for key in keys
            ]
        )
        for key in keys:
            await shop.send(key, placed(key), f"{key}|placed")
            await shop.send(key, cancelled(key), f"{key}|cancelled")

        async def is_settled() -> bool:
            return not await shop.lag()

        await until(is_settled, 30, worker.tail)
        worker.kill()

        rows = faust("parked", "list", "--json", env=shop.env).json
        assert sorted(row["key"] for row in rows) == sorted(keys)
        places = [(row["due_ms"], row["consumer"], row["key"]) for row in rows]
        assert places == sorted(places)
        fields = ["consumer", "key", "due_ms", "attempts", "count", "oldest_ms", "cause", "state"]
        assert list(rows[0]) == fields
        assert {(row["count"], row["attempts"], row["state"]) for row in rows} == {
            (2, 1, "waiting")
        }
        assert faust("parked", "list", "--consumer", "nobody", "--json", env=shop.env).json == []
        printed = faust("parked", "list", env=shop.env).out
        assert all(key in printed for key in keys)
        assert " min " in printed

        for key in keys[:2]:
            one = faust("parked", "show", key, "--json", env=shop.env).json
            assert [message["message_id"] for message in one["messages"]] == [
                f"{key}|placed",
                f"{key}|cancelled",
            ]
            assert [tried["attempt"] for tried in one["history"]] == [1]
            printed = faust("parked", "show", key, env=shop.env).out
            assert f"{key}|cancelled" in printed
        none = faust("parked", "show", "nobody", env=shop.env)
        assert none.failed_with("nobody", "not parked")
        other = faust("parked", "show", keys[0], "--consumer", "other", env=shop.env)
        assert other.failed_with("not parked")

    at_shop(story, broker, tmp_path)


def test_only_committed_rows_are_shown_and_deleted_ones_are_not(
    broker: Broker, tmp_path: Path
) -> None:
    """A crash leaves an aborted transaction, a released key a tombstone: neither is parked."""

    async def story(shop: Shop) -> None:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        order = shop.key_in(0, "order")
        shop.provider.control.script(order, {"status": 503})
        quick = {**shop.env, "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "300"}
        assert await worker.stop() == 0
        second = shop.worker("second", quick)
        second.start()
        await shop.send(order, placed(order), f"{order}|placed")
        account = shop.provider.control.account
        await until(lambda: account(order).get("charges") == 1, 30, second.tail)

        async def is_released() -> bool:
            return any(event.key == order for event in await shop.read(PAYMENTS))

        await until(is_released, 30, second.tail)
        assert await second.stop() == 0
        producer = AIOKafkaProducer(
            bootstrap_servers=shop.servers, transactional_id=uuid.uuid4().hex
        )
        await producer.start()
        try:
            await producer.begin_transaction()
            topic = f"{shop.app_id}-parked_keys-changelog"
            await producer.send_and_wait(topic, b"{}", parked_key("billing", "never"), partition=0)
            await producer.abort_transaction()
        finally:
            await producer.stop()
        assert faust("parked", "list", "--json", env=shop.env).json == []

    at_shop(story, broker, tmp_path)


# -- brokers that are not there ---------------------------------------------------------------

COMMANDS = (("parked", "list"), ("parked", "show", "x", "--json"), PLACE)


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_without_a_broker_there_is_one_line(args: tuple[str, ...]) -> None:
    done = faust(*args, env={"BOOKSTORE_BROKER_URL": "kafka://127.0.0.1:1"})

    assert done.failed_with("127.0.0.1:1", "BOOKSTORE_BROKER_URL"), done
    assert done.took_s < 30


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_a_broker_that_takes_connections_and_says_nothing_is_given_up(
    start_broker: Callable[[str], Broker], args: tuple[str, ...]
) -> None:
    broker = start_broker("embedded")
    broker.pause()
    try:
        done = faust(*args, env={"BOOKSTORE_BROKER_URL": broker.url})
    finally:
        broker.resume()

    assert done.failed_with(broker.url.removeprefix("kafka://")), done
    assert done.took_s < 30


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_where_no_worker_has_made_the_topics_the_message_says_so(
    start_broker: Callable[[str], Broker], args: tuple[str, ...]
) -> None:
    broker = start_broker("embedded")

    first = faust(*args, env={"BOOKSTORE_BROKER_URL": broker.url})
    second = faust(*args, env={"BOOKSTORE_BROKER_URL": broker.url})

    for done in (first, second):  # asking must not make them
        assert done.failed_with("no topic", "worker"), done


# -- settings ---------------------------------------------------------------------------------


def test_config_show_says_where_each_value_comes_from() -> None:
    env = {"BOOKSTORE_WEB_PORT": "6067", "BOOKSTORE_WEB_TOKEN": "hush", "BOOKSTORE_PROFILE": "demo"}

    rows = {row["name"]: row for row in faust("config", "show", "--json", env=env).json}

    assert rows["web.port"] == {
        "name": "web.port",
        "value": 6067,
        "source": "BOOKSTORE_WEB_PORT",
        "env": "BOOKSTORE_WEB_PORT",
    }
    assert rows["web.host"]["source"] == "config/default.toml"
    assert rows["consumers.billing.jitter"]["source"] == "config/demo.toml"
    assert rows["broker.request_timeout_ms"]["source"] == "default"
    printed = faust("config", "show", env=env)
    assert "hush" not in printed.out
    assert "config/demo.toml" in printed.out


def test_config_check_lists_every_problem_and_builds_nothing() -> None:
    assert faust("config", "check").out == "ok\n"

    wrong = {"BOOKSTORE_WEB_PORT": "0", "BOOKSTORE_BROKER_URL": "amqp://x", "BOOKSTORE_WEP": "1"}
    for args in (("config", "check"), ("config", "show"), ("parked", "list"), ("worker",)):
        done = faust(*args, env=wrong)
        assert (done.status, done.out) == (1, "")
        assert len(done.err.splitlines()) == len(wrong)
        for name in wrong:
            assert name in done.err
        assert "Traceback" not in done.err


# -- beside Faust's own ------------------------------------------------------------------------


def test_help_lists_our_commands_beside_fausts() -> None:
    done = faust("--help")

    assert done.status == 0
    listed = {line.split()[0] for line in done.out.splitlines() if line.startswith("  ")}
    assert listed >= {"worker", "agents", "tables", "config", "orders", "parked"}
    for args in (("parked", "--help"), ("orders", "place", "--help"), ("config", "show", "--help")):
        assert faust(*args).status == 0


def test_fausts_own_commands_still_work() -> None:
    assert "billing" in faust("agents").out
    assert "parked_keys" in faust("tables").out


@pytest.mark.parametrize("args", [("orders", "place"), ("parked", "nonsense"), ("config", "-x")])
def test_wrong_usage_ends_with_2(args: tuple[str, ...]) -> None:
    done = faust(*args)

    assert (done.status, done.out) == (2, "")
    assert "Traceback" not in done.err


def test_json_may_stand_where_faust_takes_it() -> None:
    assert isinstance(faust("config", "show", before=("--json",)).json, list)


def test_the_package_itself_runs_the_same_commands() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "bookstore_streams", "config", "check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux to see connections")
def test_ctrl_c_ends_a_command_quietly(start_broker: Callable[[str], Broker]) -> None:
    broker = start_broker("embedded")
    broker.pause()
    child = subprocess.Popen(
        [sys.executable, "-m", "faust", "-A", "bookstore_streams", "parked", "list"],
        cwd=ROOT,
        env={**os.environ, "BOOKSTORE_BROKER_URL": broker.url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        asyncio.run(until(lambda: _is_connected(child.pid, broker.port), 30, "it asks the broker"))
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
    finally:
        child.kill()
        child.wait()
        broker.resume()

    assert (child.returncode, out, err.strip()) == (1, "", "Aborted!")


def _is_connected(pid: int, port: int | None) -> bool:
    """Whether a process has a TCP connection to a port of this machine."""
    assert port is not None
    peer = f"0100007F:{port:04X}"
    table = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()
    return any(line.split()[2] == peer and line.split()[3] == "01" for line in table[1:])
