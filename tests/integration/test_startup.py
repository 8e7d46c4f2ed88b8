"""Starting: what works for a Faust user, and how a start that cannot succeed ends."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bookstore_streams.testing.brokers import Broker, EmbeddedBroker
from tests.chaos.shop import PAYMENTS, ROOT, Shop, Tail, free_port, placed

ENDS_WITHIN_S = 40.0


def app_root(folder: Path, sources: Mapping[str, str]) -> Path:
    """A deployment like ours, with these modules added: path -> source."""
    root = folder / "root"
    for part in ("agents", "tables", "config"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    for path, source in sources.items():
        (root / path).write_text(textwrap.dedent(source))
    return root


def faust(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`faust -A bookstore_streams ...` from an empty folder, to its end."""
    ours = {name: v for name, v in os.environ.items() if not name.startswith("BOOKSTORE_")}
    defaults = {
        "PYTHONPATH": str(ROOT),
        "BOOKSTORE_APP_ID": "startup",
        "BOOKSTORE_APP_ROOT": str(ROOT),
        "BOOKSTORE_DATA_DIR": str(folder / "data"),
        "BOOKSTORE_WEB_PORT": str(free_port()),
    }
    return subprocess.run(
        [sys.executable, "-m", "faust", "-A", "bookstore_streams", *arguments],
        cwd=folder,
        env={**ours, **defaults, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
    )


def assert_refused(ran: subprocess.CompletedProcess[str], *expected: str) -> None:
    """One clear message and a status that tells."""
    assert ran.returncode == 1, (ran.returncode, ran.stdout, ran.stderr)
    assert ran.stderr.startswith("Error: "), ran.stderr
    for text in ("Traceback", "Warning", 'File "', "[ERROR]", "Unclosed", "never retrieved"):
        assert text not in ran.stderr, ran.stderr
    assert ran.stderr.count("Error: ") == 1 + ran.stderr.count("Error: ", 7), ran.stderr
    for text in expected:
        assert text in ran.stderr, ran.stderr


def test_every_wrong_setting_is_named_in_one_message(tmp_path: Path) -> None:
    ran = faust(
        tmp_path,
        "worker",
        BOOKSTORE_WEB_PORT="99999",
        BOOKSTORE_BILLING_JITTER="maybe",
        BOOKSTORE_WEB_PROT="1",
        BOOKSTORE_BROKER_URL="http://x",
    )
    assert_refused(
        ran,
        "BOOKSTORE_WEB_PORT",
        "99999",
        "BOOKSTORE_BILLING_JITTER",
        "maybe",
        "BOOKSTORE_WEB_PROT",
        "BOOKSTORE_BROKER_URL",
    )
    assert len(ran.stderr.strip().splitlines()) <= 6


def test_two_settings_that_cannot_both_hold_are_refused(tmp_path: Path) -> None:
    ran = faust(tmp_path, "worker", BOOKSTORE_BROKER_HEARTBEAT_INTERVAL_MS="9000")
    assert_refused(ran, "heartbeat_interval_ms", "session_timeout_ms")


def test_a_profile_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert_refused(faust(tmp_path, "worker", BOOKSTORE_PROFILE="moon"), "moon")


def test_an_unreachable_broker_is_named(tmp_path: Path) -> None:
    port = free_port()
    started = time.monotonic()
    ran = faust(tmp_path, "worker", BOOKSTORE_BROKER_URL=f"kafka://127.0.0.1:{port}")
    assert_refused(ran, f"127.0.0.1:{port}", "BOOKSTORE_BROKER_URL")
    assert time.monotonic() - started < 30


def test_a_broker_that_accepts_and_never_answers_is_named(tmp_path: Path) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        port = mute.getsockname()[1]
        ran = faust(
            tmp_path,
            "worker",
            BOOKSTORE_BROKER_URL=f"kafka://127.0.0.1:{port}",
            BOOKSTORE_BROKER_SESSION_TIMEOUT_MS="6000",
            BOOKSTORE_BROKER_REQUEST_TIMEOUT_MS="6000",
        )
        assert_refused(ran, f"127.0.0.1:{port}", "BOOKSTORE_BROKER_URL")


def test_a_data_directory_that_cannot_be_written_is_named(
    embedded: EmbeddedBroker, tmp_path: Path
) -> None:
    # A file in the way: root may write anywhere, whatever the modes say.
    (tmp_path / "file").write_text("")
    ran = faust(
        tmp_path,
        "worker",
        BOOKSTORE_DATA_DIR=str(tmp_path / "file" / "data"),
        BOOKSTORE_BROKER_URL=embedded.url,
    )
    assert_refused(ran, str(tmp_path / "file" / "data"), "BOOKSTORE_DATA_DIR")


def test_a_port_in_use_is_named(embedded: EmbeddedBroker, tmp_path: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ran = faust(tmp_path, "worker", BOOKSTORE_WEB_PORT=port, BOOKSTORE_BROKER_URL=embedded.url)
    assert_refused(ran, port, "BOOKSTORE_WEB_PORT")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("def broken(:", "SyntaxError"),
        ("rate = 1 / 0", "ZeroDivisionError"),
        (
            """
            from bookstore_streams import app

            @app.consume("bookstore.orders", name="nobody")
            async def nobody(event, context): ...
            """,
            "[consumers.nobody]",
        ),
    ],
    ids=["missing module", "syntax error", "exception", "consumer without settings"],
)
@pytest.mark.parametrize("command", ["worker", "agents"])
def test_an_agent_that_does_not_import_stops_the_start(
    tmp_path: Path, source: str, expected: str, command: str
) -> None:
    root = app_root(tmp_path, {"agents/shipping.py": source})
    ran = faust(tmp_path, command, BOOKSTORE_APP_ROOT=str(root))
    assert_refused(ran, expected)
    if "consumers" not in expected:
        assert "agents.shipping" in ran.stderr


def test_a_root_without_agents_is_named(tmp_path: Path) -> None:
    root = app_root(tmp_path, {})
    shutil.rmtree(root / "agents")
    assert_refused(faust(tmp_path, "agents", BOOKSTORE_APP_ROOT=str(root)), str(root), "agents")


@pytest.mark.parametrize("kind", ["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_a_topic_of_another_shape_is_refused(
    start_broker: Callable[[str], Broker], tmp_path: Path, kind: str
) -> None:
    broker = start_broker(kind)
    topics = [
        NewTopic("bookstore.orders", 3, 1),
        NewTopic("startup-inbox-changelog", 8, 1, topic_configs={"cleanup.policy": "delete"}),
    ]
    asyncio.run(_make(broker, topics))
    ran = faust(tmp_path, "worker", BOOKSTORE_BROKER_URL=broker.url)
    assert_refused(
        ran, "bookstore.orders", "3 partitions", "expected 8", "startup-inbox-changelog", "delete"
    )


async def _make(broker: Broker, topics: list[NewTopic]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.url.removeprefix("kafka://"))
    await admin.start()
    try:
        await admin.create_topics(topics)
    finally:
        await admin.close()


def test_the_data_directory_of_a_running_worker_is_refused(broker: Broker, tmp_path: Path) -> None:
    asyncio.run(_share_directory(broker, tmp_path))


async def _share_directory(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder) as shop:
        worker = shop.worker()
        worker.start()
        await worker.is_ready()
        env = {name: v for name, v in shop.env.items() if name.startswith("BOOKSTORE_")}
        env["BOOKSTORE_DATA_DIR"] = str(worker.data_dir)
        ran = await asyncio.to_thread(lambda: faust(folder, "worker", **env))
        assert_refused(ran, str(worker.data_dir), "BOOKSTORE_DATA_DIR")
        # It does no harm to the one that works.
        await shop.warm_up(worker)
        assert await worker.stop() == 0
        env["BOOKSTORE_TOPICS_PARTITIONS"] = "16"
        ran = await asyncio.to_thread(lambda: faust(folder, "worker", **env))
        assert_refused(ran, str(worker.data_dir), "partitions 8", "16")


def test_agents_and_tables_are_listed(tmp_path: Path) -> None:
    agents = faust(tmp_path, "agents")
    assert agents.returncode == 0, agents.stderr
    assert "billing" in agents.stdout
    assert "bookstore.orders" in agents.stdout
    tables = faust(tmp_path, "tables")
    assert tables.returncode == 0, tables.stderr
    for name in ("inbox", "parked_keys", "parked_messages", "payments"):
        assert re.search(rf"\b{name}\b", tables.stdout), tables.stdout
    for ran in (agents, tables):
        assert "Traceback" not in ran.stderr
    assert not list(tmp_path.iterdir()), "a command that only lists leaves nothing behind"


def test_an_unknown_command_is_wrong_usage(tmp_path: Path) -> None:
    assert faust(tmp_path, "fly").returncode == 2


STOCK = """
    from bookstore_streams import app

    came = app.Table("came", default=int, transactional=False, partitions=8)
    source = app.topic("{name}.in", key_type=str, key_serializer="raw", partitions=8)
    target = app.topic("{name}.out", key_serializer="raw", partitions=8)

    @app.agent(source)
    async def stock(stream):
        async for key, value in stream.items():
            came[key] += 1
            await target.send(key=key, value={{"count": came[key]}})

    @app.command()
    async def greet():
        print("good morning")
"""


def test_an_ordinary_agent_with_an_ordinary_table_works_beside_the_engine(
    broker: Broker, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    asyncio.run(_stock_agent(broker, tmp_path, unique_name("stock")))


async def _stock_agent(broker: Broker, folder: Path, name: str) -> None:
    root = app_root(folder, {"agents/stock.py": STOCK.format(name=name)})
    async with Shop(broker, folder, {"BOOKSTORE_APP_ROOT": str(root)}) as shop:
        for topic in (f"{name}.in", f"{name}.out"):
            await shop.make_topic(topic)
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        async with Tail(shop, [f"{name}.out", PAYMENTS]) as tail:
            order = shop.key_in(0, "order")
            for number in range(24):
                await shop.send(f"key-{number % 8}", {"n": number}, f"{number}", topic=f"{name}.in")
            await shop.send(order, placed(order), f"{order}/1")
            await tail.until(f"{name}.out", 24, 30)
            await tail.until(PAYMENTS, 1, 10, order)
        env = {n: v for n, v in shop.env.items() if n.startswith("BOOKSTORE_")}
        listed = await asyncio.to_thread(lambda: faust(folder, "agents", **env))
        assert "stock" in listed.stdout
        assert "billing" in listed.stdout
        greeted = await asyncio.to_thread(lambda: faust(folder, "greet", **env))
        assert (greeted.returncode, greeted.stdout.strip()) == (0, "good morning"), greeted.stderr
        assert await worker.stop() == 0
