"""The brokers that all other tests stand on: real processes that keep what they were given."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bookstore_streams.testing.brokers import (
    HOST,
    Broker,
    BrokerUnavailableError,
    EmbeddedBroker,
    KafkaBroker,
    answers,
    free_port,
)

ROOT = Path(__file__).parents[2]
StartBroker = Callable[[str], Broker]
UniqueName = Callable[[str], str]


class Talkative(Broker):
    """Prints why and ends, as a broker does that cannot use its disk."""

    kind = "talkative"
    start_s_max = 20.0

    def _command(self, port: int) -> list[str]:
        return [sys.executable, "-c", "print('the disk is full'); raise SystemExit(3)"]


class Silent(Broker):
    """Runs and never listens."""

    kind = "silent"
    start_s_max = 0.3

    def _command(self, port: int) -> list[str]:
        return [sys.executable, "-c", "import signal; signal.pause()"]


def bootstrap_servers(broker: Broker) -> str:
    return broker.url.removeprefix("kafka://")


async def create_topic(broker: Broker, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers(broker))
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def send_in_a_transaction(broker: Broker, topic: str, *values: bytes) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers(broker), transactional_id=f"{topic}-id"
    )
    await producer.start()
    try:
        async with producer.transaction():
            for value in values:
                await producer.send_and_wait(topic, value, partition=0)
    finally:
        await producer.stop()


async def read(broker: Broker, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers(broker),
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        # A killed Kafka waits out its own session first, and three starts of it may come before.
        async with asyncio.timeout(240):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


def listening_addresses(port: int) -> set[str]:
    """Every local address, in /proc's hexadecimal, that somebody listens on at this port."""
    found = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            _, local, _, state = line.split()[:4]
            address, _, port_hex = local.partition(":")
            if state == "0A" and int(port_hex, 16) == port:
                found.add(address)
    return found


def test_a_started_broker_keeps_committed_records_in_order(
    broker: Broker, unique_name: UniqueName
) -> None:
    topic = unique_name("topic")
    asyncio.run(create_topic(broker, topic))

    asyncio.run(send_in_a_transaction(broker, topic, b"one", b"two", b"three"))

    assert asyncio.run(read(broker, topic, 3)) == [b"one", b"two", b"three"]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
def test_a_broker_listens_on_loopback_only(broker: Broker) -> None:
    assert broker.port is not None
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}

    assert listening_addresses(broker.port) <= loopback
    assert listening_addresses(broker.port)
    assert broker.url == f"kafka://127.0.0.1:{broker.port}"


@pytest.mark.kafka
def test_real_kafka_invents_no_topics(kafka: KafkaBroker, unique_name: UniqueName) -> None:
    topic = unique_name("never-made")

    async def ask_for_it() -> list[str]:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers(kafka))
        await admin.start()
        try:
            await admin.describe_topics([topic])
            listed: list[str] = await admin.list_topics()
            return listed
        finally:
            await admin.close()

    assert topic not in asyncio.run(ask_for_it())


@pytest.mark.slow
@pytest.mark.timeout(900)  # three starts of a JVM: 85 s were seen on two cores with other work
@pytest.mark.parametrize("kind", ["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_a_broker_keeps_port_and_records_when_restarted_killed_and_paused(
    kind: str, start_broker: StartBroker
) -> None:
    """The embedded broker keeps what was there at an orderly stop.

    What it acknowledged in its last second before a SIGKILL may be gone (0 of 500 records were
    left), so only Kafka is asked for that. Kafka acknowledges a commit before the partitions have
    its markers, and a SIGKILL in between can tear a transaction of a single broker apart
    (docs/guarantees.md), so the records are read before the kill: then the markers are there.
    """
    broker = start_broker(kind)
    port = broker.port
    assert port is not None
    asyncio.run(create_topic(broker, "kept"))
    asyncio.run(send_in_a_transaction(broker, "kept", b"before"))

    broker.restart()
    assert broker.port == port
    assert asyncio.run(read(broker, "kept", 1)) == [b"before"]

    kept = [b"before"]
    if kind == "kafka":
        asyncio.run(send_in_a_transaction(broker, "kept", b"just before the kill"))
        kept.append(b"just before the kill")
        assert asyncio.run(read(broker, "kept", len(kept))) == kept
    broker.kill()
    assert not answers(port)

    broker.start()
    assert broker.port == port
    assert asyncio.run(read(broker, "kept", len(kept))) == kept

    broker.pause()
    with socket.create_connection((HOST, port), timeout=2):
        assert not answers(port)
    broker.resume()
    # One answer may take longer than a busy machine's first one is waited for.
    assert any(answers(port) for _ in range(30))


def test_a_paused_broker_can_be_stopped(start_broker: StartBroker) -> None:
    broker = start_broker("embedded")
    broker.pause()

    broker.stop()

    assert broker.pid is None


def test_a_broker_that_ends_at_start_shows_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailableError, match=r"(?s)status 3.*the disk is full") as raised:
        Talkative(tmp_path).start()

    assert str(tmp_path / "talkative.log") in str(raised.value)


def test_a_broker_that_never_answers_is_ended_and_named(tmp_path: Path) -> None:
    broker = Silent(tmp_path)

    with pytest.raises(BrokerUnavailableError, match="did not answer within"):
        broker.start()

    assert broker.pid is None


@pytest.mark.skipif(
    not Path("/proc/sys/net/ipv4/ip_local_port_range").exists(), reason="reads /proc"
)
def test_a_brokers_port_is_none_that_a_client_may_be_given() -> None:
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text()
    first, last = (int(word) for word in text.split())

    for _ in range(20):
        port = free_port()
        assert not first <= port <= last
        with socket.create_server((HOST, port)):
            pass


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(BrokerUnavailableError, match=f"port {port} .* is taken"):
            EmbeddedBroker(tmp_path, port).start()


def test_a_reused_pid_is_not_taken_for_the_broker(tmp_path: Path) -> None:
    state = {"pid": os.getpid(), "birth": "long ago", "port": 1}
    (tmp_path / "embedded.json").write_text(json.dumps(state))
    broker = EmbeddedBroker(tmp_path)

    assert broker.pid is None
    broker.kill()  # would end this test run


def test_a_machine_without_java_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(BrokerUnavailableError, match=r"no `java`: install them with `apt-get"):
        KafkaBroker(tmp_path / "data").start()


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    with pytest.raises(BrokerUnavailableError, match=r"needs Java 17 or newer.*11\.0\.2"):
        KafkaBroker(tmp_path / "data").start()


def test_a_machine_without_maven_is_told_so_unless_it_has_the_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))

    with pytest.raises(BrokerUnavailableError, match=r"needs Maven once, and there is no `mvn`"):
        KafkaBroker(tmp_path / "data").start()


def test_the_command_leaves_a_broker_up_and_finds_it_again(tmp_path: Path) -> None:
    def brokers(verb: str, *options: str) -> subprocess.CompletedProcess[str]:
        module = "bookstore_streams.testing.broker_command"
        command = [sys.executable, "-m", module, verb, "embedded", "--data-dir", str(tmp_path)]
        return subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)

    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    assert brokers("status").returncode == 1

    up = brokers("up", "--port", str(port))
    try:
        assert up.returncode == 0, up.stderr
        assert f"kafka://127.0.0.1:{port}" in up.stdout
        assert answers(port)
        assert brokers("status").stdout == up.stdout
        again = brokers("up")
        assert (again.returncode, again.stdout) == (0, up.stdout)
    finally:
        down = brokers("down")
    assert (down.returncode, down.stdout) == (0, "embedded: stopped\n")
    assert not answers(port)
    assert brokers("down").stdout == "embedded: was not up\n"


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_without_a_real_kafka_a_laptop_skips_and_ci_fails(
    ci: str, outcome: str, tmp_path: Path
) -> None:
    no_java = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": str(tmp_path), "CI": ci}
    one_test = f"{Path(__file__).relative_to(ROOT)}::test_real_kafka_invents_no_topics"

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", one_test],
        cwd=ROOT,
        env=no_java,
        capture_output=True,
        text=True,
    )

    assert outcome in run.stdout.splitlines()[-1]
    assert "no `java`: install them with" in run.stdout
