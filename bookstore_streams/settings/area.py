"""The settings there are: one frozen dataclass per area, each field with its meaning.

A new setting is one `setting(...)` here: its environment name, `config show` and
docs/settings.md follow from it. What two settings owe each other stands in `contradiction`.
"""

# `setting` is dataclasses.field, which ruff cannot know, and its defaults cannot change.
# ruff: noqa: RUF009

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bookstore_streams.settings import form
from bookstore_streams.settings.declaration import Range, setting

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AppSettings:
    """Who this app is to Kafka."""

    id: str = setting(
        "bookstore",
        "Name of the app: the consumer group, and the first part of its changelog topics and"
        " transactional ids.",
        "Another name is another app: it reads from the start, with empty tables.",
        form="1 to 100 letters, digits, '.', '_' and '-', the first a letter or digit",
        fits=re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}").fullmatch,
    )


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How to reach Kafka, and how long silence is tolerated."""

    url: str = setting(
        "kafka://127.0.0.1:9092",
        "Kafka brokers to start from; the port is 9092 where absent.",
        "More brokers make a start possible while some are down.",
        form=form.KAFKA,
        fits=form.servers,
    )
    session_timeout_ms: int = setting(
        10_000,
        "Age of the last heartbeat at which a worker has lost its partitions (its lease).",
        "Longer pauses are survived, but a killed worker's keys wait as long.",
        within=Range(6_000, 1_800_000, "ms"),
    )
    heartbeat_interval_ms: int = setting(
        1_000,
        "Time between two heartbeats to the group's coordinator; their answers tell of rebalances.",
        "Fewer requests, but rebalances wait longer, and fewer chances to be heard in a session.",
        within=Range(100, 900_000, "ms"),
    )
    request_timeout_ms: int = setting(
        40_000,
        "Time after which a request to a broker without an answer has failed.",
        "Slow brokers are waited for, and dead ones noticed later.",
        within=Range(1_000, 3_600_000, "ms"),
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT",
        "Whether connections are encrypted (SSL) and logged in (SASL).",
        "Has to be what the brokers' listener speaks.",
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = setting(
        None,
        "How to log in with SASL.",
        "Required with a SASL protocol, refused without.",
    )
    sasl_username: str | None = setting(
        None,
        "User to log in as.",
        "Required with a SASL protocol, refused without.",
    )
    sasl_password: str | None = setting(
        None,
        "Password of `broker.sasl_username`.",
        "Required with a SASL protocol, refused without.",
        secret=True,
    )
    ssl_cafile: Path | None = setting(
        None,
        "PEM file of the authorities that the brokers' certificates must come from.",
        "Replaces the system's authorities.",
    )
    ssl_certfile: Path | None = setting(
        None,
        "PEM file of our own certificate, for brokers that ask clients for one.",
        "Shown to the brokers as who we are.",
    )
    ssl_keyfile: Path | None = setting(
        None,
        "PEM file of the key of `broker.ssl_certfile`.",
        "Only needed where the certificate's file does not hold the key itself.",
    )
    replication_factor: int = setting(
        1,
        "Copies of each topic that the app creates, on as many brokers.",
        "Topics survive the loss of more brokers, for more storage and slower commits.",
        within=Range(1, 16, "copies"),
    )
    min_insync_replicas: int | None = setting(
        None,
        "Copies that must hold a record before it counts as written, for topics that the app"
        " creates; off leaves it to the brokers.",
        "Written records survive more, but writing stops earlier when brokers fail.",
        within=Range(1, 16, "copies"),
    )

    @property
    def servers(self) -> tuple[str, ...]:
        """The brokers as `host:port` (IPv6 in brackets), in the order given, at least one."""
        return form.servers(self.url)


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Where this worker keeps its local state."""

    dir: Path = setting(
        Path("data"),
        "Directory of the local RocksDB, relative to the current directory; one worker each.",
        "An empty one is rebuilt from the changelogs at start.",
    )


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The worker's web server."""

    host: str = setting(
        "127.0.0.1",
        "Address the web server listens on.",
        "0.0.0.0 makes it reachable from other machines, for reading by anybody there.",
        form="a host name or IP address",
        fits=re.compile(r"[A-Za-z0-9._:%-]+").fullmatch,
    )
    port: int = setting(
        6066,
        "Port the web server listens on.",
        "Another worker on the same machine needs another.",
        within=Range(1, 65_535, "port"),
    )
    token: str | None = setting(
        None,
        "Bearer token that replay, skip and discard over HTTP need; off refuses them all.",
        "Who has it can change what becomes of parked messages.",
        form="visible ASCII characters without spaces",
        fits=re.compile(r"[!-~]+").fullmatch,
        secret=True,
    )
    advertised_url: str | None = setting(
        None,
        "URL at which other workers and people reach this web server; off derives it from"
        " host and port.",
        "Needed behind a proxy or a port mapping.",
        form=form.HTTP,
        fits=form.is_http_url,
    )


@dataclass(frozen=True, slots=True)
class TopicsSettings:
    """Shape of the topics that the app creates and checks at start."""

    partitions: int = setting(
        8,
        "Partitions of every topic of the bookstore; cannot change once topics exist.",
        "More workers can share the work, for more memory and slower starts.",
        within=Range(1, 1_024, "partitions"),
    )
    message_bytes_max: int = setting(
        1_000_000,
        "Largest event or table row that a handler may write.",
        "Larger ones pass, if the brokers take them; memory per message grows.",
        within=Range(1_024, 64 * MIB, "bytes"),
    )
    row_bytes_max: int = setting(
        4 * MIB,
        "`max.message.bytes` of our changelog and dead-letter topics, which hold whole messages"
        " with their headers.",
        "Larger messages can be parked and dead-lettered.",
        within=Range(2_048, 256 * MIB, "bytes"),
    )


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """How many messages share one transaction."""

    interval_ms: int = setting(
        50,
        "Longest wait of a finished message for its commit.",
        "Larger and cheaper transactions, but events leave later.",
        within=Range(1, 10_000, "ms"),
    )
    messages_max: int = setting(
        2_000,
        "Finished messages of a partition at which it commits without waiting.",
        "Larger and cheaper transactions, for more memory and more to redo after a crash.",
        within=Range(1, 100_000, "messages"),
    )
    timeout_ms: int = setting(
        30_000,
        "Time after which the brokers abort a transaction that its worker left open.",
        "Slow brokers are waited for, but readers wait as long behind a dead worker.",
        # Brokers refuse more than their transaction.max.timeout.ms, 15 minutes by default.
        within=Range(1_000, 900_000, "ms"),
    )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How much a partition does at once."""

    concurrency: int = setting(
        32,
        "Handlers that run at once in a partition, each for another key.",
        "More outside calls in flight, for more load on whom they call.",
        within=Range(1, 1_024, "handlers"),
    )
    backlog_max: int = setting(
        4_000,
        "Unfinished messages of a partition held in memory; reading it pauses at that number.",
        "A slow key holds up its partition later, for more memory and more to redo.",
        within=Range(1, 1_000_000, "messages"),
    )


@dataclass(frozen=True, slots=True)
class InboxSettings:
    """The memory of message ids already handled."""

    retention_ms: int = setting(
        7 * DAY_MS,
        "How long a handled message id is remembered.",
        "Later duplicates are still caught, for more storage and longer recovery.",
        within=Range(1_000, 10 * YEAR_MS, "ms"),
    )
    missing_id: Literal["dead_letter", "offset"] = setting(
        "dead_letter",
        "What becomes of a message without an id: a dead letter, or its topic, partition and"
        " offset serve as the id.",
        "`offset` lets such messages in, but a message sent twice is handled twice.",
    )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The local RocksDB, all partitions of this worker together."""

    cache_bytes: int = setting(
        64 * MIB,
        "Block cache; write buffers count towards it.",
        "Fewer reads from disk, for more memory.",
        within=Range(MIB, 65_536 * MIB, "bytes"),
    )
    write_buffer_bytes: int = setting(
        32 * MIB,
        "Changes held in memory before they are flushed to a file.",
        "Fewer and larger files, for less room in the cache.",
        within=Range(MIB, 65_536 * MIB, "bytes"),
    )
    changelog_retention_ms: int = setting(
        DAY_MS,
        "`delete.retention.ms` of the changelogs: how long a disk may be away before its state"
        " is rebuilt from nothing.",
        "Longer absences are caught up cheaply, for more storage on the brokers.",
        within=Range(1_000, 10 * YEAR_MS, "ms"),
    )


@dataclass(frozen=True, slots=True)
class PaymentSettings:
    """The payment provider that billing calls."""

    url: str = setting(
        "http://127.0.0.1:6070",
        "Base URL of the payment provider.",
        "Another provider has another ledger: idempotency keys do not carry over.",
        form=form.HTTP,
        fits=form.is_http_url,
    )
    timeout_ms: int = setting(
        5_000,
        "Time for a whole call, connecting included; then it counts as failed for now.",
        "A slow provider is waited for, and its keys hold their place longer.",
        within=Range(1, 600_000, "ms"),
    )
    connections_max: int = setting(
        100,
        "Connections to the provider at once, per worker.",
        "More calls in flight, for more load on the provider.",
        within=Range(1, 10_000, "connections"),
    )


@dataclass(frozen=True, slots=True)
class ShutdownSettings:
    """How a worker leaves."""

    ms: int = setting(
        10_000,
        "Time from SIGTERM to gone: messages in flight may finish, then it commits and leaves.",
        "Slower handlers may finish, but a stop takes as long.",
        within=Range(100, 600_000, "ms"),
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is logged."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = setting(
        "INFO",
        "Least level that is logged.",
        "Less is logged from DEBUG to ERROR.",
    )


@dataclass(frozen=True, slots=True)
class RabbitmqSettings:
    """RabbitMQ, read by the bridge."""

    url: str | None = setting(
        None,
        "RabbitMQ broker; off leaves RabbitMQ out of the bridge.",
        "The bridge connects to it.",
        form=form.AMQP,
        fits=form.is_amqp_url,
        secret=True,
        shown=form.without_password,
    )


@dataclass(frozen=True, slots=True)
class ServicebusSettings:
    """Azure Service Bus, read by the bridge."""

    connection_string: str | None = setting(
        None,
        "Azure Service Bus namespace and key; off leaves Service Bus out of the bridge.",
        "The bridge connects to it.",
        form=form.SERVICE_BUS,
        fits=form.is_service_bus_string,
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What a consumer does about failures."""

    backoff_ms_base: int = setting(
        2_000,
        "Back-off after the first failed attempt.",
        "A passing failure gets more time before the second attempt.",
        within=Range(1, DAY_MS, "ms"),
    )
    backoff_factor: float = setting(
        2.0,
        "Each back-off is the one before times this.",
        "Later attempts are further apart.",
        within=Range(1, 10, "factor"),
    )
    backoff_ms_max: int = setting(
        300_000,
        "Longest back-off.",
        "Later attempts may be further apart, so recovery is noticed later.",
        within=Range(1, 7 * DAY_MS, "ms"),
    )
    jitter: Literal["none", "full", "equal"] = setting(
        "equal",
        "Part of the back-off that varies by message: none, all of it, or half.",
        "From none over equal to full, attempts of many keys spread more.",
    )
    attempts_max: int = setting(
        12,
        "Attempts at a message before it becomes a dead letter, the first included.",
        "Longer outages are ridden out, and a hopeless message blocks its key longer.",
        within=Range(1, 10_000, "attempts"),
    )
    deadline_ms: int | None = setting(
        None,
        "Time after an order's placement past which nothing is attempted any more; off is no"
        " deadline.",
        "Longer outages are ridden out; the customer hears later that it failed.",
        within=Range(1, YEAR_MS, "ms"),
    )
    immediate_attempts: int = setting(
        0,
        "Extra attempts of a round without parking the key in between.",
        "Short hiccups are mended sooner, for more load on whoever fails.",
        within=Range(0, 20, "attempts"),
    )
    immediate_total_ms_max: int = setting(
        2_000,
        "Longest time that the immediate attempts of a round take together.",
        "More of them fit, and the key's place is held longer.",
        within=Range(1, 60_000, "ms"),
    )
    handler_timeout_ms: int = setting(
        30_000,
        "Time after which a running handler is cancelled; it counts as failed for now.",
        "Slower handlers may finish, and a hanging one holds its place longer.",
        within=Range(1, 3_600_000, "ms"),
    )
