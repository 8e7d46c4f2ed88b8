"""The Faust app with the engine inside: our transport, our tables, and `consume`."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import faust
from faust.app.base import SCAN_AGENT
from faust.utils import venusian

from bookstore_streams.core import events
from bookstore_streams.core.policy import Jitter, Policy
from bookstore_streams.engine.consumer import Consumer, DeadLetterHook, Handler
from bookstore_streams.engine.engine import Engine
from bookstore_streams.engine.limits import Limits
from bookstore_streams.errors import ConfigError
from bookstore_streams.settings import ConsumerSettings, Settings

from .agent import ConsumerAgent
from .backend import KafkaBackend
from .clock import SystemClock
from .connection import credentials
from .directory import DataDirectory
from .lease import Lease
from .lineage import lineage
from .predecessor import sign_off
from .table import TransactionalTable, TransactionalTableManager
from .topics import TopicSpec, ensure_topics
from .transport import Transport
from .worker import Worker

POLL_RECORDS_MAX = 1_000
# Shorter segments than this cost the broker more in files than they save in bytes.
SEGMENT_MS_MIN = 600_000


class App(faust.App):
    """A Faust app whose consumers apply every message once and in order.

    Attributes:
        settings: it was made from.
        engine: runs the consumers.
        lease: how long this worker may act as the owner of its partitions.
    """

    tables: TransactionalTableManager

    def __init__(self, settings: Settings, **kwargs: Any) -> None:
        """Make the app; it connects to nothing before it starts.

        Args:
            settings: of the app, checked.
            kwargs: what `faust.App` takes beside what the settings give.
        """
        self.settings = settings
        broker, web = settings.broker, settings.web
        super().__init__(
            settings.app.id,
            broker=[f"kafka://{server}" for server in broker.servers],
            broker_credentials=credentials(broker),
            broker_session_timeout=broker.session_timeout_ms / 1000,
            broker_heartbeat_interval=broker.heartbeat_interval_ms / 1000,
            broker_request_timeout=broker.request_timeout_ms / 1000,
            consumer_auto_offset_reset="earliest",
            # A consumer's fetch must take the largest record there is, or it stalls on it.
            consumer_max_fetch_size=max(settings.topics.row_bytes_max, 1 << 20),
            # Else one fetch could bring tens of thousands of small records at once, far
            # more than the backlog allows.
            broker_max_poll_records=min(POLL_RECORDS_MAX, settings.engine.backlog_max),
            topic_partitions=settings.topics.partitions,
            topic_replication_factor=broker.replication_factor,
            store="memory://",
            datadir=settings.data.dir,
            web_bind=web.host,
            web_port=web.port,
            web_host=_reachable(web.host),
            canonical_url=web.advertised_url or f"http://{_reachable(web.host)}:{web.port}",
            TableManager=TransactionalTableManager,
            Worker=Worker,
            **kwargs,
        )
        self.directory = DataDirectory(
            settings.data.dir, settings.app.id, settings.topics.partitions
        )
        self.lease = Lease(broker.session_timeout_ms)
        self.engine = Engine(
            KafkaBackend(
                settings,
                self.directory.path,
                self.changelogs,
                lambda: self.consumer,  # type: ignore[arg-type, return-value]
                self.lease,
            ),
            SystemClock(),
            _limits(settings),
            session_timeout_ms=broker.session_timeout_ms,
            on_fatal=self._on_fatal,
        )
        self._emitted: set[str] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []

    # -- declaring ----------------------------------------------------------------------------

    def Table(self, name: str, *, transactional: bool = True, **kwargs: Any) -> Any:  # noqa: N802
        """Declare a table.

        Args:
            name: unique in the app.
            transactional: whether its rows change in the same step as the message's offset
                and events; False gives Faust's stock table, which keeps none of this app's
                promises.
            kwargs: what `TransactionalTable`, or `faust.Table`, takes.
        """
        if not transactional:
            return super().Table(name, **kwargs)
        kwargs.setdefault("partitions", self.settings.topics.partitions)
        if name in self.tables:
            return self.tables[name]  # discovery imports modules twice
        return self.tables.add(
            TransactionalTable(self, name=name, beacon=self.tables.beacon, **kwargs)
        )

    def consume(
        self,
        *topics: str,
        name: str,
        events: Sequence[type[Any]] | None = None,
        emits: Iterable[str] = (),
        on_dead_letter: DeadLetterHook | None = None,
        transient: tuple[type[BaseException], ...] = (),
        deadline_from: Callable[[Any], int | None] | None = None,
        policy: ConsumerSettings | None = None,
    ) -> Callable[[Handler], ConsumerAgent]:
        """Declare a consumer: the decorated function is called once per message, per key in order.

        Args:
            topics: names of the topics it reads, one queue per key over all of them.
            name: lower-case letters, digits, `_` and `-`; `[consumers.<name>]` in the
                settings holds its policy.
            events: event classes it handles; other types and tombstones are ignored and
                counted. None gives it every decoded JSON value as it is.
            emits: names of the topics it emits to; made when missing, and no others.
            on_dead_letter: awaited with (event, dead letter, context) in the unit of work of
                the dead letter of an event that could be read.
            transient: exception types of its own that pass.
            deadline_from: event -> epoch ms that the policy's deadline counts from.
            policy: instead of the settings' one.
        """
        emitted = frozenset(emits)
        chosen = policy or self.settings.consumers.get(name)
        if chosen is None:
            raise ConfigError(
                f"Consumer {name!r} has no settings: add a section [consumers.{name}] to "
                "config/default.toml; it may be empty."
            )

        def declare(handle: Handler) -> ConsumerAgent:
            consumer = Consumer(
                name=name,
                topics=topics,
                handle=handle,
                dead_letter_topic=f"bookstore.orders.{name}.dlt",
                policy=_policy(chosen),
                **_reading(events),
                emits=emitted,
                on_dead_letter=on_dead_letter,
                transient=transient,
                deadline_from=deadline_from,
                handler_timeout_ms=chosen.handler_timeout_ms,
                missing_id_from_offset=self.settings.inbox.missing_id == "offset",
            )
            agent = ConsumerAgent(
                handle,
                consumer=consumer,
                app=self,
                name=name,
                channel=self.topic(*topics, partitions=self.settings.topics.partitions),
                help=handle.__doc__,
            )
            self.agents[name] = agent
            self.topics.beacon.add(agent)
            venusian.attach(agent, category=SCAN_AGENT)
            self.engine.add(consumer)
            self._emitted.update(emitted)
            return agent

        return declare

    def close_at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Await `close` when the worker has ended: no handler runs any more by then.

        Faust's own signal comes first, while handlers still use what they were given.
        """
        if close not in self._closers:  # discovery imports modules twice
            self._closers.append(close)

    async def on_shutdown(self) -> None:
        """Call when everything has stopped."""
        await super().on_shutdown()
        for close in self._closers:
            await close()

    # -- what it needs --------------------------------------------------------------------------

    def changelogs(self) -> dict[str, str]:
        """Table -> changelog topic, transactional tables only."""
        return {
            table.name: table.changelog_topic.get_topic_name()
            for table in self.tables.transactional()
        }

    def topic_specs(self) -> list[TopicSpec]:
        """Every topic the engine reads or writes, as it must be."""
        topics, store = self.settings.topics, self.settings.store
        consumers = self.engine.consumers.values()
        names = {topic for consumer in consumers for topic in consumer.topics} | self._emitted
        durable: dict[str, str] = {}
        # Of what only this app reads: retention counts by the broker's clock, and a worker whose
        # own is fast is not refused.
        own = {"message.timestamp.type": "LogAppendTime"}
        if self.settings.broker.min_insync_replicas is not None:
            durable["min.insync.replicas"] = str(self.settings.broker.min_insync_replicas)
        specs = [TopicSpec(name, topics.partitions, durable) for name in sorted(names)]
        specs += [
            TopicSpec(
                consumer.dead_letter_topic,
                topics.partitions,
                {
                    "max.message.bytes": str(topics.row_bytes_max),
                    "retention.ms": "-1",
                    **own,
                    **durable,
                },
            )
            for consumer in consumers
        ]
        for table in self.tables.transactional():
            config = {
                "cleanup.policy": "compact",
                "max.message.bytes": str(topics.row_bytes_max),
                "delete.retention.ms": str(store.changelog_retention_ms),
                **own,
                **durable,
            }
            if table.rows_expire_after_ms is not None:
                config["cleanup.policy"] = "compact,delete"
                config["retention.ms"] = str(table.rows_expire_after_ms)
                # Only closed segments are removed; by default they are closed after a week.
                config["segment.ms"] = str(max(SEGMENT_MS_MIN, table.rows_expire_after_ms // 7))
            specs.append(
                TopicSpec(table.changelog_topic.get_topic_name(), topics.partitions, config)
            )
        return specs

    async def prepare(self) -> None:
        """Everything that must hold before the worker starts.

        Raises:
            BookstoreError: a sentence that says what is wrong and what to do.
        """
        self.directory.claim()
        await ensure_topics(self.topic_specs(), self.settings.broker)
        if changelogs := self.changelogs().values():
            self.directory.bind((await lineage(changelogs, self.settings.broker)).cluster)
        await sign_off(self.directory.path, self.settings.app.id, self.settings.broker)

    def _on_fatal(self, error: BaseException) -> None:
        self.loop.create_task(self.crash(error))

    def _new_transport(self) -> Transport:
        return Transport(self.conf.broker_consumer, self)

    def _new_producer_transport(self) -> Transport:
        return Transport(self.conf.broker_producer, self)


def _reachable(host: str) -> str:
    """The host in a URL at which others reach a server that listens on this address."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _policy(settings: ConsumerSettings) -> Policy:
    return Policy(
        attempts_max=settings.attempts_max,
        backoff_ms_base=settings.backoff_ms_base,
        backoff_factor=settings.backoff_factor,
        backoff_ms_max=settings.backoff_ms_max,
        jitter=Jitter(settings.jitter),
        deadline_ms=settings.deadline_ms,
        immediate_attempts=settings.immediate_attempts,
        immediate_total_ms_max=settings.immediate_total_ms_max,
    )


def _reading(kinds: Sequence[type[Any]] | None) -> dict[str, Any]:
    if kinds is None:
        return {}
    return {"parse": events.parse, "known_types": events.known_types(*kinds)}


def _limits(settings: Settings) -> Limits:
    return Limits(
        concurrency=settings.engine.concurrency,
        backlog_max=settings.engine.backlog_max,
        commit_interval_ms=settings.commit.interval_ms,
        commit_messages_max=settings.commit.messages_max,
        message_bytes_max=settings.topics.message_bytes_max,
        row_bytes_max=settings.topics.row_bytes_max,
        inbox_retention_ms=settings.inbox.retention_ms,
        shutdown_ms=settings.shutdown.ms,
    )
