"""The bookstore from outside: a broker, a payment provider, workers as processes, and topics.

Everything here is what any other program could do: produce, consume committed records, ask
the provider what it booked, start a worker and send it signals.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import OffsetAndMetadata

from bookstore_streams.kafka.journal import partition_of
from bookstore_streams.testing.brokers import Broker
from bookstore_streams.testing.brokers import free_port as free_port
from bookstore_streams.testing.provider import ProviderProcess, start_provider_process
from tests.chaos.nest import WORKER, Forked, Nest
from tests.chaos.proxy import Link

ROOT = Path(__file__).parents[2]
ORDERS = "bookstore.orders"
PAYMENTS = "bookstore.payments"
DEAD_LETTERS = "bookstore.orders.billing.dlt"
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Seen:
    """A committed record and when a reader saw it first.

    Attributes:
        headers: name -> last value.
        all_headers: as they stand, copies included.
        seen_ms: epoch ms; it was committed before.
    """

    topic: str
    partition: int
    offset: int
    key: str | None
    raw_key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    all_headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int
    seen_ms: int

    @property
    def message_id(self) -> str:
        """Of the header."""
        return self.headers["message-id"]

    @property
    def event(self) -> dict[str, Any]:
        """The decoded value."""
        event: dict[str, Any] = json.loads(self.value or b"null")
        return event


async def until(
    condition: Callable[[], bool | Awaitable[bool]], within_s: float, what: str | Callable[[], str]
) -> float:
    """Seconds until the condition held; fails naming `what` when it does not hold in time."""
    started = time.monotonic()
    while True:
        held = condition()
        if not isinstance(held, bool):
            held = await held
        if held:
            return time.monotonic() - started
        if time.monotonic() - started > within_s:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {within_s:g} s: {text}")
        await asyncio.sleep(POLL_S)


async def pause(seconds: float) -> None:
    """Space out what is sent, so that it arrives while things happen; nothing is waited for."""
    await asyncio.sleep(seconds)


class WorkerProcess:
    """A worker with a data directory and a web port of its own; started as often as needed.

    Attributes:
        name: of the worker in file names.
        data_dir: its state.
        port: of its web server.
        log: everything it printed, over all its starts.
        trace: file with one byte per commit begun since the last traced start.
        crashes_ms: when it was found dead by SIGKILL, epoch ms, never before it died.
    """

    def __init__(
        self, name: str, folder: Path, env: Mapping[str, str], nest: Nest | None = None
    ) -> None:
        self.name = name
        self._nest = nest
        self.data_dir = folder / f"data-{name}"
        self.log = folder / f"{name}.log"
        self.trace = folder / f"{name}.trace"
        self.port = free_port()
        self._env = {
            **env,
            "BOOKSTORE_DATA_DIR": str(self.data_dir),
            "BOOKSTORE_WEB_PORT": str(self.port),
        }
        self.crashes_ms: list[int] = []
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def start(
        self,
        *,
        at: tuple[str, int] | None = None,
        then: signal.Signals = signal.SIGKILL,
        is_traced: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start it; with `at` (step of a commit, count) it sends itself the signal `then` there.

        In a shop with a nest it is forked, and always traced.
        """
        assert not self.is_running(), f"{self.name} runs already"
        command = [sys.executable, "-m", "faust", "-A", "bookstore_streams", "worker"]
        extra = dict(env or {})
        if at is not None or is_traced or self._nest is not None:
            command = [sys.executable, str(WORKER), "worker"]
            self.trace.write_bytes(b"")
            extra["CHAOS_TRACE"] = str(self.trace)
        if at is not None:
            extra["CHAOS_STEP"], extra["CHAOS_COUNT"] = at[0], str(at[1])
            extra["CHAOS_SIGNAL"] = then.name
        with self.log.open("ab") as log:
            log.write(f"--- start {datetime.now(UTC)} {at}\n".encode())
            log.flush()
            if self._nest is not None:
                self._process = self._nest.start({**self._env, **extra}, self.log)
                return
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**self._env, **extra},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the process started last."""
        assert self._process is not None
        return self._process.pid

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process is not None and self._process.poll() is None

    def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded JSON of a page of its web server."""
        url = f"http://127.0.0.1:{self.port}{path}"
        request = Request(url, headers={"Accept": "application/json"})
        try:
            with build_opener(ProxyHandler({})).open(request, timeout=10) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    async def is_ready(self, within_s: float = 180.0) -> float:
        """Wait until it says that all its partitions are open; fails when it ends instead."""

        async def is_ready() -> bool:
            assert self.is_running(), self.tail()
            if not is_listening(self.port):
                return False
            status, _ = await asyncio.to_thread(self.get, "/health/ready")
            return status == 200

        return await until(is_ready, within_s, self.tail)

    async def is_up(self, within_s: float = 120.0) -> float:
        """Wait until its web server listens: it takes signals and is joining the group."""
        return await until(
            lambda: is_listening(self.port) or not self.is_running(), within_s, self.tail
        )

    def commits(self) -> int:
        """Commits begun since the last traced start."""
        return self.trace.stat().st_size if self.trace.exists() else 0

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> int | None:
        """End it by SIGKILL; harmless where it has ended. Its exit status, None if never started.

        A status of -9 says that it was killed, here or by itself.
        """
        if self._process is None:
            return None
        self._process.kill()
        status = self._process.wait()
        self.crashes_ms.append(time.time_ns() // 1_000_000)
        return status

    def is_stopped(self) -> bool:
        """Whether it is frozen by SIGSTOP."""
        status = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return status[0] == "T"

    def leave(self, within_s: float) -> None:
        """SIGTERM, and SIGKILL if that does not end it; harmless where it has ended."""
        if self._process is not None and self.is_running():
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(within_s)
            self.kill()

    async def ended(self, within_s: float) -> int:
        """The exit status, negative for a signal; fails if it still runs by then."""
        process = self._process
        assert process is not None
        await until(lambda: process.poll() is not None, within_s, lambda: self.tail(40))
        return process.wait()

    async def stop(self, within_s: float = 60.0) -> int:
        """SIGTERM; the exit status."""
        self.send(signal.SIGTERM)
        return await self.ended(within_s)

    def wipe(self) -> None:
        """Lose the disk."""
        assert not self.is_running()
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def text(self) -> str:
        """All that it printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tracebacks(self) -> list[str]:
        """Tracebacks in its log, but for one that aiokafka 0.14 sometimes leaves when it closes."""
        _, *found = self.text().split("Traceback (most recent call last):")
        return [text for text in found if "_on_read_task_error" not in text.split("\n[")[0]]

    def has_found_no_broker(self) -> bool:
        """Whether its last start ended because of the broker, as it may: it is to be started again.

        Faust's own start-up ends with aiokafka's exception where a connection is lost.
        """
        started = self.text().rpartition("--- start ")[2]
        lost = re.search(
            r"^(Error: (No Kafka broker|preparing the topics)|aiokafka\.errors\.)",
            started,
            re.MULTILINE,
        )
        return lost is not None and "InvariantError" not in started

    def tail(self, lines: int = 30) -> str:
        """The end of what it printed."""
        return f"{self.name}:\n" + "\n".join(self.text().splitlines()[-lines:])


@dataclass
class Shop:
    """One app on one broker with one provider; start it with `async with`.

    Attributes:
        broker: that runs already.
        folder: for data directories and logs.
        settings: environment names and values on top of the harness's own.
        app_id: of the app; its group starts at the end of what the topics hold already.
        partitions: of every topic; None takes what is there.
        nest: forks the workers, where there is one.
    """

    broker: Broker
    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    app_id: str = ""
    partitions: int = 8
    workers: list[WorkerProcess] = field(default_factory=list)
    nest: Nest | None = None

    async def __aenter__(self) -> Self:
        self.app_id = self.app_id or f"shop-{uuid.uuid4().hex[:10]}"
        self.servers = self.broker.url.removeprefix("kafka://")
        self._stack = AsyncExitStack()
        try:
            self.provider: ProviderProcess = self._stack.enter_context(start_provider_process())
            await self._make_topics()
            self.first = await self._ends()
            await self._begin_at(self.first)
            self.producer = AIOKafkaProducer(
                bootstrap_servers=self.servers,
                acks="all",
                linger_ms=5,
                max_request_size=16 << 20,
            )
            await self.producer.start()
            self._stack.push_async_callback(self.producer.stop)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            if error is not None:  # pytest shows it with the failure
                print(worker.tail(80))
            # A killed worker can leave a transaction open, behind which the readers of the
            # next test on this broker would wait.
            worker.leave(within_s=15)
        await self._stack.aclose()

    @property
    def env(self) -> dict[str, str]:
        """What a worker of this shop is started with, but for data directory and port."""
        ours = {name: v for name, v in os.environ.items() if not name.startswith("BOOKSTORE_")}
        return {
            **ours,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "BOOKSTORE_APP_ID": self.app_id,
            "BOOKSTORE_APP_ROOT": str(ROOT),
            "BOOKSTORE_BROKER_URL": self.broker.url,
            "BOOKSTORE_BROKER_SESSION_TIMEOUT_MS": "6000",
            "BOOKSTORE_BROKER_HEARTBEAT_INTERVAL_MS": "500",
            "BOOKSTORE_TOPICS_PARTITIONS": str(self.partitions),
            "BOOKSTORE_PAYMENT_URL": self.provider.url,
            **self.settings,
        }

    def worker(
        self, name: str = "a", env: Mapping[str, str] | None = None, *, link: Link | None = None
    ) -> WorkerProcess:
        """A worker that is not started yet, behind a link or not; ended with the block."""
        way = {} if link is None else {"BOOKSTORE_BROKER_URL": f"kafka://127.0.0.1:{link.port}"}
        worker = WorkerProcess(name, self.folder, {**self.env, **way, **(env or {})}, self.nest)
        self.workers.append(worker)
        return worker

    # -- topics ------------------------------------------------------------------------------

    async def _make_topics(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            there = set(await admin.list_topics())
            config = {"max.message.bytes": "4194304", "retention.ms": "-1"}
            missing = [
                NewTopic(name, self.partitions, 1, topic_configs=config if "dlt" in name else {})
                for name in (ORDERS, PAYMENTS, DEAD_LETTERS)
                if name not in there
            ]
            if missing:
                await admin.create_topics(missing)
        finally:
            await admin.close()

    async def _ends(self) -> dict[TopicPartition, int]:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.servers)
        await consumer.start()
        try:
            tps = self._topic_partitions(ORDERS, PAYMENTS, DEAD_LETTERS)
            consumer.assign(tps)
            return dict(await consumer.end_offsets(tps))
        finally:
            await consumer.stop()

    def _topic_partitions(self, *topics: str) -> list[TopicPartition]:
        return [TopicPartition(t, n) for t in topics for n in range(self.partitions)]

    async def _begin_at(self, ends: Mapping[TopicPartition, int]) -> None:
        """Let a new group begin behind what earlier tests left on a shared broker."""
        if not any(ends.values()):
            return
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.servers, group_id=self.app_id, enable_auto_commit=False
        )
        await consumer.start()
        try:
            mine = self._topic_partitions(ORDERS)
            consumer.assign(mine)
            await consumer.commit({tp: OffsetAndMetadata(ends[tp], "") for tp in mine})
        finally:
            await consumer.stop()

    async def send(
        self,
        key: str | bytes | None,
        value: Mapping[str, Any] | bytes | None,
        message_id: str | bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        *,
        partition: int | None = None,
        topic: str = ORDERS,
    ) -> Any:
        """Produce one record and wait until the broker has it; where it stands."""
        sent = await self.enqueue(key, value, message_id, headers, partition=partition, topic=topic)
        return await sent

    async def enqueue(
        self,
        key: str | bytes | None,
        value: Mapping[str, Any] | bytes | None,
        message_id: str | bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        *,
        partition: int | None = None,
        topic: str = ORDERS,
    ) -> Awaitable[Any]:
        """Produce one record; what it returns is done when the broker has it."""
        all_headers = list(headers)
        if message_id is not None:
            raw = message_id.encode() if isinstance(message_id, str) else message_id
            all_headers.append(("message-id", raw))
        sent: Awaitable[Any] = await self.producer.send(
            topic,
            key=key.encode() if isinstance(key, str) else key,
            value=value
            if value is None or isinstance(value, bytes)
            else json.dumps(value).encode(),
            headers=all_headers,
            partition=partition,
        )
        return sent

    async def warm_up(self, *workers: WorkerProcess, within_s: float = 180.0) -> None:
        """Return once every partition handles orders; these ones are not of the test."""
        orders = [self.key_in(number, "warm-up") for number in range(self.partitions)]
        for order_id in orders:
            await self.send(order_id, placed(order_id), f"{order_id}/placed")
        await until(
            lambda: self.provider.control.ledger().keys() >= set(orders),
            within_s,
            lambda: "\n".join(worker.tail() for worker in workers),
        )

    def key_in(self, partition: int, prefix: str) -> str:
        """A new key that Kafka's default partitioner sends to this partition."""
        while True:
            key = f"{prefix}-{uuid.uuid4().hex[:12]}"
            if partition_of(key.encode(), self.partitions) == partition:
                return key

    async def calls(self, order_id: str) -> list[dict[str, Any]]:
        """What the provider was asked about an order, in order of arrival."""
        calls = await asyncio.to_thread(self.provider.control.calls)
        return [call for call in calls if call["order_id"] == order_id]

    async def read(self, *topics: str) -> list[Seen]:
        """Every committed record of these topics since the shop was opened, to the end."""
        async with Tail(self, topics) as tail:
            await tail.to_end()
            return tail.records

    async def committed(self) -> dict[int, int]:
        """Partition of `bookstore.orders` -> next offset that the group has committed."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.servers, group_id=self.app_id, enable_auto_commit=False
        )
        await consumer.start()
        try:
            found = {}
            for tp in self._topic_partitions(ORDERS):
                offset = await consumer.committed(tp)
                found[tp.partition] = self.first[tp] if offset is None else offset
            return found
        finally:
            await consumer.stop()

    async def make_topic(self, name: str, config: Mapping[str, str] | None = None) -> None:
        """Make one more topic with the partitions of the others."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers)
        await admin.start()
        try:
            await admin.create_topics(
                [NewTopic(name, self.partitions, 1, topic_configs=dict(config or {}))]
            )
        finally:
            await admin.close()

    async def has_no_lag(self) -> bool:
        """Whether everything sent is committed."""
        return not await self.lag()

    async def lag(self) -> int:
        """Records of `bookstore.orders` behind the committed offsets."""
        ends, committed = await self._ends(), await self.committed()
        return sum(ends[TopicPartition(ORDERS, n)] - offset for n, offset in committed.items())


class Tail:
    """Reads topics as they grow, committed records only, and remembers when it saw each."""

    def __init__(self, shop: Shop, topics: Sequence[str]) -> None:
        self.records: list[Seen] = []
        self._shop = shop
        self._tps = shop._topic_partitions(*topics)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._shop.servers,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=8 << 20,
            fetch_max_wait_ms=50,
        )
        await self._consumer.start()
        self._consumer.assign(self._tps)
        for tp in self._tps:
            self._consumer.seek(tp, self._shop.first.get(tp, 0))
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._consumer.stop()

    async def _follow(self) -> None:
        while True:
            fetched = await self._consumer.getmany(timeout_ms=100)
            now_ms = time.time_ns() // 1_000_000
            for records in fetched.values():
                for r in records:
                    self.records.append(
                        Seen(
                            r.topic,
                            r.partition,
                            r.offset,
                            None if r.key is None else r.key.decode("utf-8", "replace"),
                            r.key,
                            r.value,
                            {n: (v or b"").decode("utf-8", "replace") for n, v in r.headers},
                            tuple(r.headers),
                            r.timestamp,
                            now_ms,
                        )
                    )

    async def to_end(self, within_s: float = 180.0) -> None:
        """Wait until it has passed what is stable now."""
        ends = await self._consumer.end_offsets(self._tps)

        async def is_there() -> bool:
            assert self._task is not None
            if self._task.done():
                self._task.result()
            return all([await self._consumer.position(tp) >= end for tp, end in ends.items()])

        await until(is_there, within_s, "the reader reaches the end")

    def of(self, topic: str, *keys: str) -> list[Seen]:
        """What it has read of one topic, of these keys only where some are given."""
        return [r for r in self.records if r.topic == topic and (not keys or r.key in keys)]

    async def until(self, topic: str, count: int, within_s: float, *keys: str) -> list[Seen]:
        """Wait for so many records; gives all that there are then."""
        await until(
            lambda: len(self.of(topic, *keys)) >= count,
            within_s,
            lambda: f"{count} records of {topic}, found {self.of(topic, *keys)}",
        )
        return self.of(topic, *keys)


def placed(
    order_id: str, *, price: str = "12.50", quantity: int = 1, **fields: Any
) -> dict[str, Any]:
    """An `OrderPlaced` of now."""
    return {
        "type": "OrderPlaced",
        "order_id": order_id,
        "customer_id": "customer-1",
        "currency": "EUR",
        "lines": [{"sku": "book-1", "quantity": quantity, "unit_price": price}],
        "placed_at": now_text(),
        **fields,
    }


def cancelled(order_id: str, **fields: Any) -> dict[str, Any]:
    """An `OrderCancelled` of now."""
    return {
        "type": "OrderCancelled",
        "order_id": order_id,
        "reason": "changed-mind",
        "cancelled_at": now_text(),
        **fields,
    }


def now_text() -> str:
    """Now, as RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def is_listening(port: int) -> bool:
    """Whether somebody on this machine takes connections at this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
