"""The topics the app needs: made when missing, looked at when present, refused when they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from bookstore_streams.errors import ConnectionLostError, TopicMismatchError, TransportError
from bookstore_streams.settings.area import BrokerSettings

from .connection import client_options, translated


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as the app needs it.

    Attributes:
        name: of the topic.
        partitions: exactly so many.
        config: set when it is made, and required when it is there: `cleanup.policy` exactly
            (as a set of words), sizes, times and replicas at least.
    """

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


async def ensure_topics(specs: Iterable[TopicSpec], broker: BrokerSettings) -> list[str]:
    """Make missing topics and check present ones.

    Args:
        specs: what is needed.
        broker: where.

    Returns:
        Names of the topics that were made.

    Raises:
        TopicMismatchError: one line for each topic that is there with another shape.
        ConnectionLostError: no broker answered.
        TransportError: the broker refused.
    """
    wanted = {spec.name: spec for spec in specs}
    admin = AIOKafkaAdminClient(**client_options(broker))
    try:
        try:
            await admin.start()
        except Exception as error:
            servers = ", ".join(broker.servers)
            raise ConnectionLostError(
                f"No Kafka broker answers at {servers} ({type(error).__name__}: {error}). "
                "Start one, or set BOOKSTORE_BROKER_URL."
            ) from error
        try:
            made = await _create_missing(admin, wanted, broker.replication_factor)
            await _check(admin, [spec for name, spec in wanted.items() if name not in made])
        except TransportError:
            raise
        except Exception as error:
            raise translated(error, "preparing the topics") from error
        return made
    finally:
        await admin.close()


async def _create_missing(
    admin: AIOKafkaAdminClient, wanted: Mapping[str, TopicSpec], replication_factor: int
) -> list[str]:
    present = set(await admin.list_topics())
    missing = [spec for name, spec in wanted.items() if name not in present]
    if not missing:
        return []
    response = await admin.create_topics(
        [
            NewTopic(
                name=spec.name,
                num_partitions=spec.partitions,
                replication_factor=replication_factor,
                topic_configs=dict(spec.config),
            )
            for spec in missing
        ]
    )
    made = []
    for name, code, *message in response.topic_errors:
        error = for_code(code)
        if code == 0:
            made.append(name)
        elif error is not TopicAlreadyExistsError:  # else another worker was faster
            text = next((part for part in message if part), "")
            raise translated(error(text), f"making topic {name}")
    return made


async def _check(admin: AIOKafkaAdminClient, specs: list[TopicSpec]) -> None:
    if not specs:
        return
    problems = []
    found = {
        topic["topic"]: topic for topic in await admin.describe_topics([s.name for s in specs])
    }
    configs = await _configs(admin, [spec.name for spec in specs])
    for spec in specs:
        count = len(found[spec.name]["partitions"])
        if count != spec.partitions:
            problems.append(
                f"Topic {spec.name} has {count} partitions, expected {spec.partitions}: set "
                f"BOOKSTORE_TOPICS_PARTITIONS={count}, or make the topic anew."
            )
        for key, expected in spec.config.items():
            value = configs.get(spec.name, {}).get(key)
            if value is not None and not _fits(key, expected, value):
                problems.append(f"Topic {spec.name} has {key}={value}, expected {expected}.")
    if problems:
        raise TopicMismatchError("\n".join(problems))


async def _configs(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(resources):
        for code, message, _, name, entries in response.resources:
            if code:
                raise translated(for_code(code)(message), f"reading the configuration of {name}")
            found[name] = {entry[0]: entry[1] for entry in entries}
    return found


def _fits(key: str, expected: str, value: str) -> bool:
    if key == "cleanup.policy":
        return set(value.replace(" ", "").split(",")) == set(expected.split(","))
    if key in ("max.message.bytes", "retention.ms", "delete.retention.ms", "min.insync.replicas"):
        # More is as good: a record that fits less fits this, a row or a tombstone is kept at
        # least as long, a commit is at least as safe.
        return int(value) == -1 or int(value) >= int(expected)
    return True
