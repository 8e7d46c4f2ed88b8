"""Which cluster and which topics a local copy was made from, by the ids that Kafka gives them.

A topic that was deleted and made anew keeps its name and may even be as long as the old one;
its id is another (KIP-516). The id is asked for with a request of our own, since aiokafka
0.14 speaks no version of Metadata that tells it.

Source: Metadata version 12 of the Kafka protocol guide, tried on Kafka 4.4.0.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IncompatibleBrokerVersion, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from bookstore_streams.settings.area import BrokerSettings

from .connection import client_options
from .lookup import no_answer, stopped


@dataclass(frozen=True, slots=True)
class Lineage:
    """What Kafka calls the cluster and the topics.

    Attributes:
        cluster: id of the cluster; None where the broker tells none.
        topics: name -> id, every topic that was asked for and is there; empty where the
            broker gives none: Kafka before 3.1, the embedded one.
    """

    cluster: str | None
    topics: dict[str, str]


async def lineage(topics: Iterable[str], broker: BrokerSettings) -> Lineage:
    """Ask a broker for the ids of its cluster and of these topics, over a connection of its own.

    Args:
        topics: names; at least one, or the broker would list all it has.
        broker: where.

    Raises:
        ConnectionLostError: no broker answers.
        TransportError: the broker refuses.
    """
    client = AIOKafkaClient(**client_options(broker))
    try:
        await client.bootstrap()
        answer: Any = await client.send(client.get_random_node(), _MetadataRequest(topics))
        ids = {}
        for code, name, topic_id, *_ in answer.topics:
            if code == 0:
                if topic_id != _NO_ID:
                    ids[name] = str(topic_id)
            elif code != _UNKNOWN_TOPIC:
                raise for_code(code)(f"describing {name}")
        return Lineage(answer.cluster_id, ids)
    except (IncompatibleBrokerVersion, NotImplementedError):
        return Lineage(None, {})
    except Exception as error:
        raise no_answer(error, broker) from error
    finally:
        await stopped(client.close())


_UNKNOWN_TOPIC = 3
_NO_ID = uuid.UUID(int=0)


class _Uuid:
    """A field of sixteen bytes."""

    @staticmethod
    def encode(value: uuid.UUID) -> bytes:
        return value.bytes

    @staticmethod
    def decode(data: BinaryIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))

    @staticmethod
    def repr(value: uuid.UUID) -> str:
        return str(value)


class _MetadataResponse(Response):  # type: ignore[misc]
    API_KEY = 3
    API_VERSION = 12
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _MetadataRequestStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 12
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _MetadataRequest(Request[_MetadataRequestStruct]):  # type: ignore[misc]
    API_KEY: ClassVar[int] = 3

    def __init__(self, topics: Iterable[str]) -> None:
        no_tags: dict[int, bytes] = {}
        self._topics = [(_NO_ID, topic, no_tags) for topic in topics]

    def build(self, request_struct_class: type[_MetadataRequestStruct]) -> _MetadataRequestStruct:
        return request_struct_class(self._topics, False, False, {})
