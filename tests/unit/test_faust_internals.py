"""Every internal of Faust and aiokafka that `kafka/`, `web/` and `application.py` lean on.

Faust is made crash-safe by subclassing it, so its private names and call orders are part of
our contract with it. A release that changes one of them must be red here, by name, before
anything stranger happens elsewhere. docs/decisions/0001 says what each is used for.

What is public and documented (AIOKafkaProducer.send, faust.Table, ...) is left to the tests
that use it; two facts that no document promises are pinned all the same.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiokafka
import click
import faust
import pytest
import venusian
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher, PartitionRecords
from aiokafka.consumer.group_coordinator import (
    GroupCoordinator,
    JoinGroupRequest,
    OffsetCommitRequest,
)
from aiokafka.consumer.subscription_state import TopicPartitionState
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.protocol.fetch import FetchRequest
from faust.agents import Agent
from faust.app.base import SCAN_AGENT
from faust.cli import base as faust_cli
from faust.stores.base import Store
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka as stock
from faust.types import TP
from faust.web.drivers.aiohttp import Web
from mode.services import Service
from mode.threads import QueueServiceThread

from bookstore_streams.kafka.agent import ConsumerAgent
from bookstore_streams.kafka.app import App
from bookstore_streams.kafka.table import (
    EngineStore,
    TransactionalTable,
    TransactionalTableManager,
)
from bookstore_streams.kafka.transport import Consumer, ConsumerThread, Transport
from bookstore_streams.kafka.worker import Worker
from bookstore_streams.settings import Settings, load
from bookstore_streams.web.server import Server

ROOT = Path(__file__).parents[2]
LIBRARIES = ("faust", "mode")

# Our class -> what it replaces of Faust's -> the parameters that Faust's own has. A dunder of
# a mapping is no internal and is left out.
OVERRIDDEN: dict[type, dict[str, tuple[str, ...]]] = {
    App: {
        "Table": ("self", "name", "default", "window", "partitions", "help", "kwargs"),
        "on_shutdown": ("self",),
        "_new_transport": ("self",),
        "_new_producer_transport": ("self",),
    },
    ConsumerThread: {
        "on_start": ("self",),
        "on_thread_stop": ("self",),
        "_create_worker_consumer": ("self", "transport"),
        "_fetch_records": ("self", "consumer", "active_partitions", "timeout", "max_records"),
        "seek_to_committed": ("self",),
    },
    Consumer: {
        "_new_consumer_thread": ("self",),
        "_wait_next_records": ("self", "timeout"),
        "_getmany": ("self", "active_partitions", "timeout"),
        "on_partitions_revoked": ("self", "revoked"),
        "on_partitions_assigned": ("self", "assigned", "generation_id"),
        "on_stop": ("self",),
        "verify_event_path": ("self", "now", "tp"),
    },
    ConsumerAgent: {"on_start": ("self",), "on_stop": ("self",)},
    TransactionalTable: {
        "_new_store": ("self",),
        "update": ("self", "args", "kwargs"),
        "clear": ("self",),
    },
    TransactionalTableManager: {"add": ("self", "table")},
    EngineStore: {
        "persisted_offset": ("self", "tp"),
        "reset_state": ("self",),
        "apply_changelog_batch": ("self", "batch", "to_key", "to_value"),
        "backup_partition": ("self", "tp", "flush", "purge", "keep"),
        "restore_backup": ("self", "tp", "latest", "backup_id"),
    },
    Worker: {"execute_from_commandline": ("self",)},
}

# Private names of theirs that our modules read, set or call, beside what is overridden; each
# has its test below.
PRIVATE_NAMES = {
    "_channels",
    "_client",
    "_coordinator",
    "_create_fetch_waiter",
    "_do_heartbeat",
    "_ensure_consumer",
    "_fetch_max_wait_ms",
    "_fetcher",
    "_get_active_partitions",
    "_isolation_level",
    "_new_topicpartition",
    "_records",
    "_runner",
    "_subscriptions",
    "_thread",
}

# callable -> names of parameters that we pass, by position or by name.
CALLED: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (faust.App._new_web, ()),
    (Agent.__init__, ("fun", "app", "name", "channel", "help")),
    (Store.__init__, ("url", "app", "table", "table_name", "loop")),
    (Web.__init__, ("app",)),
    (QueueServiceThread.call_thread, ("fun", "args")),
    (Service.add_future, ("coro",)),
    (stock.AIOKafkaConsumerThread._ensure_consumer, ()),
    (stock.Consumer._new_topicpartition, ("topic", "partition")),
    (stock.Consumer.seek_wait, ("partitions",)),
    (stock.ensure_aiokafka_TP, ("tp",)),
    (stock.Transport.__init__, ("url", "app")),
    (venusian.attach, ("wrapped", "callback", "category")),
    (GroupCoordinator._do_heartbeat, ()),
    (Fetcher.fetched_records, ("partitions", "timeout", "max_records")),
    (Fetcher._create_fetch_waiter, ()),
    (
        PartitionRecords.__init__,
        (
            "tp",
            "records",
            "aborted_transactions",
            "fetch_offset",
            "key_deserializer",
            "value_deserializer",
            "check_crcs",
            "isolation_level",
        ),
    ),
    (TopicPartitionState.consumed_to, ("position",)),
    (
        FetchRequest.__init__,
        ("max_wait_time", "min_bytes", "max_bytes", "isolation_level", "topics"),
    ),
    (AIOKafkaConsumer.committed, ("partition",)),
    (AIOKafkaConsumer.seek_to_committed, ("partitions",)),
    (AIOKafkaConsumer.pause, ("partitions",)),
    (AIOKafkaClient.set_topics, ("topics",)),
    (AIOKafkaClient.force_metadata_update, ()),
    (AIOKafkaProducer.create_batch, ()),
    (AIOKafkaProducer.send_batch, ("batch", "topic", "partition")),
    (AIOKafkaProducer.send_offsets_to_transaction, ("offsets", "group_id")),
    (AIOKafkaProducer.partitions_for, ("topic",)),
    (BatchBuilder.append, ("timestamp", "key", "value", "headers")),
    (BatchBuilder.record_count, ()),
    (BatchBuilder.close, ()),
    (AIOKafkaAdminClient.create_topics, ("new_topics",)),
    (AIOKafkaAdminClient.describe_topics, ("topics",)),
    (AIOKafkaAdminClient.describe_configs, ("config_resources",)),
]


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in a loop of its own: Faust takes the loop that it finds."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def settings(**env: str) -> Settings:
    return load([], {f"BOOKSTORE_{name}": value for name, value in env.items()})


def new_app(**options: Any) -> Any:
    """An app of ours without anything in it; Any, since we look where nobody should."""
    return App(settings(), **options)


def parameters(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def theirs(cls: type, name: str) -> Any:
    """What a class of theirs says under this name, the nearest first; None for nothing."""
    for base in cls.__mro__[1:]:
        if base.__module__.startswith(LIBRARIES) and name in vars(base):
            return vars(base)[name]
    return None


# --- names and signatures -----------------------------------------------------------------


@pytest.mark.parametrize("ours", OVERRIDDEN, ids=lambda cls: cls.__name__)
def test_what_we_override_is_there_and_takes_what_it_took(ours: type) -> None:
    found = {
        name: None if theirs(ours, name) is None else parameters(theirs(ours, name))
        for name in OVERRIDDEN[ours]
    }

    assert found == OVERRIDDEN[ours]


@pytest.mark.parametrize("ours", OVERRIDDEN, ids=lambda cls: cls.__name__)
def test_an_override_is_a_coroutine_exactly_where_theirs_is(ours: type) -> None:
    for name in OVERRIDDEN[ours]:
        is_async = inspect.iscoroutinefunction(theirs(ours, name))
        assert inspect.iscoroutinefunction(vars(ours)[name]) == is_async, name


@pytest.mark.parametrize("ours", OVERRIDDEN, ids=lambda cls: cls.__name__)
def test_everything_we_override_is_listed(ours: type) -> None:
    made_by_the_class_itself = {"logger", "_abc_impl"}
    overridden = {
        name
        for name in vars(ours)
        if not name.startswith("__")
        and name not in made_by_the_class_itself
        and theirs(ours, name) is not None
    }

    assert overridden == set(OVERRIDDEN[ours])


@pytest.mark.parametrize(
    ("function", "names"), CALLED, ids=[function.__qualname__ for function, _ in CALLED]
)
def test_what_we_call_takes_what_we_pass(
    function: Callable[..., Any], names: tuple[str, ...]
) -> None:
    found = parameters(function)

    assert [name for name in names if name not in found and "kwargs" not in found] == []


def test_every_private_name_of_theirs_that_we_use_is_listed() -> None:
    """Whatever begins with one underscore and is defined nowhere in our own package."""
    used, own = set(), set()
    for path in sorted((ROOT / "bookstore_streams").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    own.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    own.add(name)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                    own.add(name)
                case ast.Attribute(attr=name) if name.startswith("_"):
                    used.add(name)
    foreign = {name for name in used - own if not name.startswith("__")} - {"_asdict"}
    # Assigned to an attribute of self, but read by Faust's own methods.
    foreign |= {"_runner"}

    assert foreign == PRIVATE_NAMES


# --- the app ------------------------------------------------------------------------------


@in_loop
async def test_the_settings_arrive_where_faust_reads_them() -> None:
    app: Any = App(settings(BROKER_URL="kafka://a:1;b:2", WEB_PORT="7001"))
    conf, own = app.conf, app.settings

    assert [str(url) for url in conf.broker] == ["kafka://a:1", "kafka://b:2"]
    assert [str(url) for url in conf.broker_consumer] == ["kafka://a:1", "kafka://b:2"]
    assert [str(url) for url in conf.broker_producer] == ["kafka://a:1", "kafka://b:2"]
    assert conf.id == own.app.id
    assert conf.broker_session_timeout * 1000 == own.broker.session_timeout_ms
    assert conf.broker_heartbeat_interval * 1000 == own.broker.heartbeat_interval_ms
    assert conf.broker_request_timeout * 1000 == own.broker.request_timeout_ms
    assert conf.consumer_auto_offset_reset == "earliest"
    assert conf.consumer_max_fetch_size >= own.topics.row_bytes_max
    assert conf.broker_max_poll_records <= own.engine.backlog_max
    assert conf.topic_partitions == own.topics.partitions
    assert conf.topic_replication_factor == own.broker.replication_factor
    assert (conf.web_bind, conf.web_port) == (own.web.host, 7001)
    assert str(conf.canonical_url) == "http://127.0.0.1:7001"
    assert conf.TableManager is TransactionalTableManager
    assert conf.Worker is Worker
    assert conf.processing_guarantee.name == "AT_LEAST_ONCE"


@in_loop
async def test_the_app_makes_our_transport_worker_and_tables() -> None:
    app = new_app()

    assert type(app.transport) is Transport
    assert type(app.producer_transport) is Transport
    assert type(app.tables) is TransactionalTableManager
    assert type(app.Worker()) is Worker
    assert app.client_only is False
    assert app.rebalancing is False


@in_loop
async def test_on_shutdown_is_called_after_everything_has_stopped() -> None:
    """Only then is nobody left who uses the payment provider's connections."""
    told: list[str] = []

    class Child(Service):
        async def on_stop(self) -> None:
            told.append("child stopped")

    class Parent(Service):
        async def on_start(self) -> None:
            await self.add_runtime_dependency(Child())

        async def on_shutdown(self) -> None:
            told.append("shutdown")

    parent = Parent()
    await parent.start()
    await parent.stop()

    assert told == ["child stopped", "shutdown"]
    assert "on_shutdown" not in vars(faust.App)


@in_loop
async def test_a_consumer_is_registered_as_a_stock_agent_is() -> None:
    app = new_app()

    @app.agent(app.topic("stock"))
    async def stock_agent(stream: Any) -> None:
        async for _ in stream:
            pass

    @app.consume("ours", name="billing")
    async def ours(event: Any, context: Any) -> None:
        pass

    assert SCAN_AGENT == "faust.agent"
    assert {*app.agents.values()} == {stock_agent, ours}
    assert {stock_agent, ours} <= {*app.topics.beacon.children}
    for agent in (stock_agent, ours):
        assert SCAN_AGENT in getattr(agent, venusian.ATTACH_ATTR)


@in_loop
async def test_an_agent_that_starts_needs_its_channel_among_the_topics_and_no_more() -> None:
    app = new_app()

    @app.consume("orders", name="billing")
    async def billing(event: Any, context: Any) -> None:
        pass

    await billing.on_start()
    assert "orders" in {topic for channel in app.topics for topic in channel.topics}
    await billing.on_stop()


def test_commands_can_be_put_beside_fausts_own_and_see_its_options() -> None:
    assert isinstance(faust_cli.cli, click.Group)
    assert faust_cli.State.json is False


@in_loop
async def test_other_workers_are_known_from_the_assignor() -> None:
    app = new_app()

    assert parameters(type(app.assignor).external_topics_metadata) == ("self",)
    assert app.router.external_topics_metadata() == {}
    assert app.assignor.assigned_actives() == set()


# --- tables -------------------------------------------------------------------------------


async def _channels_updated(app: Any) -> None:
    """What Faust does with tables at its start and at every rebalance."""
    app.consumer = SimpleNamespace(assignment=set, pause_partitions=lambda _: None)
    for table in app.tables.values():
        table.maybe_start = _nothing  # it would ask a broker for the topic
    await app.tables._update_channels()


async def _nothing() -> None:
    pass


@in_loop
async def test_a_table_with_a_channel_is_neither_subscribed_to_nor_recovered() -> None:
    app = new_app()
    table = app.Table("payments")

    assert app.tables._channels == {table: table.changelog_topic}
    await _channels_updated(app)
    assert list(app.topics) == []


@in_loop
async def test_a_table_without_a_channel_would_be_subscribed_to() -> None:
    """The control of the test above: that the channel is what makes the difference."""
    app = new_app()
    app.Table("payments")
    app.tables._channels.clear()

    await _channels_updated(app)
    assert len(list(app.topics)) == 1


@in_loop
async def test_the_copartitioning_assignor_is_used() -> None:
    """Either reason is enough: tables are known by changelog, standby replicas are not off."""
    app = new_app()
    app.Table("payments")
    assert app.tables.changelog_topics == {"bookstore-payments-changelog"}
    assert app.conf.table_standby_replicas > 0

    assert await _assignor(app) is app.assignor
    app = new_app(table_standby_replicas=0)
    app.Table("payments")
    assert await _assignor(app) is app.assignor
    app = new_app(table_standby_replicas=0)
    assert await _assignor(app) is RoundRobinPartitionAssignor


async def _assignor(app: Any) -> Any:
    with consumer_of(app) as consumer:
        await consumer._thread._create_worker_consumer(app.transport).stop()
        return consumer._thread._assignor


@in_loop
async def test_a_stock_table_is_left_to_faust() -> None:
    app = new_app()
    table = app.Table("stock", transactional=False)

    assert table not in app.tables._channels
    assert TableManager._update_channels is TransactionalTableManager._update_channels


# --- the group consumer -------------------------------------------------------------------


@contextmanager
def consumer_of(app: Any) -> Iterator[Consumer]:
    """The group consumer of an app, not started."""

    async def told(*args: Any) -> None:
        pass

    made = app.transport.create_consumer(
        told, on_partitions_revoked=told, on_partitions_assigned=told
    )
    assert type(made) is Consumer
    try:
        yield made
    finally:
        made._thread.thread_loop.close()


@in_loop
async def test_the_transport_makes_our_consumer_with_our_thread() -> None:
    with consumer_of(new_app()) as consumer:
        thread = consumer._thread
        assert type(thread) is ConsumerThread
        assert thread.consumer is consumer
        assert {"log", "add_future", "should_stop"} <= set(dir(thread))


@in_loop
async def test_the_worker_reads_committed_records_only_and_fetches_are_short() -> None:
    app = new_app()
    with consumer_of(app) as consumer:
        client = consumer._thread._create_worker_consumer(app.transport)
    assert client._isolation_level == "read_committed"
    assert client._fetch_max_wait_ms == 200
    assert client._coordinator is None
    await client.stop()


def test_aiokafka_takes_both_from_there_when_it_starts() -> None:
    """They are set between construction and start, so they must not be copied before."""
    constructed = inspect.getsource(AIOKafkaConsumer.__init__)
    started = inspect.getsource(AIOKafkaConsumer.start)

    assert "Fetcher(" not in constructed
    for name in ("isolation_level", "fetch_max_wait_ms"):
        assert f"{name}=self._{name}" in started


def test_records_reach_faust_only_through_getmany() -> None:
    source = inspect.getsource(stock.Consumer._wait_next_records)

    assert "self._getmany(\n                    active_partitions=active_partitions" in source
    assert "self._wait_next_records(" in inspect.getsource(stock.Consumer.getmany)
    assert inspect.iscoroutinefunction(stock.Consumer._getmany)


def test_an_empty_set_of_partitions_means_all_of_them_to_aiokafka() -> None:
    """Why `_getmany` never passes one on."""

    async def fetched() -> Any:
        fetcher = Fetcher.__new__(Fetcher)
        fetcher._subscriptions = SimpleNamespace(
            reassignment_in_progress=False, is_assigned=lambda tp: True
        )
        fetcher._records = {TopicPartition("t", 0): object()}
        fetcher._notify, fetcher._wait_consume_future = lambda _: None, None
        with pytest.raises(AttributeError, match="check_raise"):  # it looked at t-0
            await fetcher.fetched_records(set())
        fetcher._records = {TopicPartition("t", 0): object()}
        return await fetcher.fetched_records({TopicPartition("t", 1)})

    assert asyncio.run(fetched()) == {}


def test_faust_seeks_back_to_the_committed_offset_by_itself() -> None:
    """Why a partition drops offsets below the one it expects."""
    assert "self.seek_to_committed()" in inspect.getsource(stock.Consumer.perform_seek)


def test_partition_changes_are_told_in_the_loop_of_the_app_and_waited_for() -> None:
    """Rows are committed in `on_partitions_revoked` before the group is joined again."""
    listener = inspect.getsource(stock.ConsumerRebalanceListener)
    told = inspect.getsource(stock.Consumer.threadsafe_partitions_revoked)
    joining = inspect.getsource(GroupCoordinator._on_join_prepare)

    assert "return thread.on_partitions_revoked(" in listener
    assert "await promise" in told
    assert "on_partitions_revoked" in joining


# --- the lease ----------------------------------------------------------------------------


def _coordinator(answer: Any) -> tuple[GroupCoordinator, list[str]]:
    """A coordinator of a group that answers heartbeats with this error code, or raises."""
    coordinator, asked = GroupCoordinator.__new__(GroupCoordinator), []

    async def send(request: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(error_code=answer)

    coordinator.group_id, coordinator.generation, coordinator.member_id = "g", 3, "m"
    coordinator.coordinator_id = 1
    coordinator._send_req = send
    for name in ("coordinator_dead", "request_rejoin", "reset_generation"):
        setattr(coordinator, name, lambda name=name: asked.append(name))
    return coordinator, asked


@pytest.mark.parametrize(
    ("answer", "is_alive"),
    [
        (0, True),
        (aiokafka.errors.RebalanceInProgressError.errno, True),
        (aiokafka.errors.IllegalGenerationError.errno, False),
        (aiokafka.errors.UnknownMemberIdError.errno, False),
        (aiokafka.errors.NotCoordinatorForGroupError.errno, False),
        (aiokafka.errors.RequestTimedOutError(), False),
    ],
)
def test_a_heartbeat_tells_whether_the_group_knows_the_worker(
    answer: Any, is_alive: bool, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator, _ = _coordinator(answer)

    assert asyncio.run(coordinator._do_heartbeat()) is is_alive


def test_a_consumer_that_is_in_no_group_yet_has_no_generation() -> None:
    source = inspect.getsource(GroupCoordinator.__init__)

    assert "self.generation = OffsetCommitRequest.DEFAULT_GENERATION_ID" in source
    assert "self.member_id = JoinGroupRequest.UNKNOWN_MEMBER_ID" in source
    assert OffsetCommitRequest.DEFAULT_GENERATION_ID == -1
    assert JoinGroupRequest.UNKNOWN_MEMBER_ID == ""


# --- the producer -------------------------------------------------------------------------


def test_a_batch_takes_a_record_of_any_size_first_and_says_none_when_it_is_full() -> None:
    """How a row larger than a batch gets a batch of its own, and how a full one is noticed."""
    batch = BatchBuilder(100, 0, is_transactional=1)

    assert batch.append(timestamp=1, key=b"k", value=b"v" * 1_000, headers=[]) is not None
    assert batch.append(timestamp=1, key=b"k", value=b"v", headers=[]) is None
    assert batch.record_count() == 1


def test_a_batch_takes_headers_as_pairs_and_a_value_that_is_none() -> None:
    batch = BatchBuilder(1_000, 0, is_transactional=1)

    assert batch.append(timestamp=1, key=b"k", value=None, headers=[("a", b"1"), ("a", None)])


@pytest.mark.parametrize(
    ("key", "hashed"), [(b"21", -973932308), (b"foobar", -790332482), (b"", 275646681)]
)
def test_the_partitioner_is_the_one_of_kafkas_own_client(key: bytes, hashed: int) -> None:
    """Source: org.apache.kafka.common.utils.UtilsTest, testMurmur2."""
    assert murmur2(key) & 0xFFFFFFFF == hashed & 0xFFFFFFFF


# --- the web server -----------------------------------------------------------------------


def test_fausts_own_pages_can_be_left_out() -> None:
    blueprints = {
        "default_blueprints",
        "production_blueprints",
        "debug_blueprints",
        "optional_blueprints",
    }

    found = {name for name in vars(Web.__mro__[1]) if re.fullmatch("[a-z]+_blueprints", name)}
    assert found == blueprints
    assert all(getattr(Server, name) == () for name in blueprints)


def test_the_server_serves_web_app_through_its_runner() -> None:
    assert "self.web_app" in inspect.getsource(Web.__init__)
    assert "self._runner" in inspect.getsource(Web.start_server)


def test_a_topic_partition_of_fausts_serves_as_one_of_aiokafkas() -> None:
    tp = stock.ensure_aiokafka_TP(TP("t", 1))

    assert isinstance(tp, TopicPartition)
    assert tp == TP("t", 1)


# --- the process --------------------------------------------------------------------------


def test_faust_worker_runs_the_worker_class_of_the_settings_from_the_command_line() -> None:
    from faust.cli.worker import worker

    assert "self.app.conf.Worker" in inspect.getsource(worker)
    assert "execute_from_commandline()" in inspect.getsource(faust_cli.Command)
    assert issubclass(Worker, faust.Worker)


@in_loop
async def test_a_fetcher_keeps_what_it_fetched_by_partition_and_says_when_there_is_more() -> None:
    """What our own drain of it leans on: `_records`, `_subscriptions`, `_closed`, the waiter."""
    client = AIOKafkaConsumer()
    fetcher = Fetcher(client._client, client._subscription, fetch_max_wait_ms=1)
    try:
        assert fetcher._records == {}
        assert not fetcher._closed
        assert not client._closed
        with fetcher._subscriptions.fetch_context():
            waiter = fetcher._create_fetch_waiter()
        assert not waiter.done()
        waiter.cancel()
    finally:
        await fetcher.close()
        await client.stop()


def test_a_started_consumer_has_its_fetcher_under_this_name() -> None:
    assert "self._fetcher = Fetcher(" in inspect.getsource(AIOKafkaConsumer.start)
