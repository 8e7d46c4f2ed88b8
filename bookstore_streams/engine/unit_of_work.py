"""One message's unit of work: nothing of it exists before its handler returns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from bookstore_streams.core.effects import Attempt
from bookstore_streams.core.envelope import (
    CAUSATION_ID,
    MESSAGE_ID,
    emitted_id,
    inbox_id,
    propagated,
)
from bookstore_streams.core.events import to_document
from bookstore_streams.errors import LeaseLostError, RecordTooLargeError, UnitOfWorkError
from bookstore_streams.ports import Emission, Headers

if TYPE_CHECKING:
    from .consumer import Consumer

#: The unit of work of the handler that runs in this task.
current: ContextVar[Context | None] = ContextVar("current", default=None)

_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all units of work of a partition have in common.

    Attributes:
        read: a row of (table, key) as the next message must see it.
        has_lease: whether this worker may act as the owner.
        bytes_max: of a row or event.
        tables: names of all tables; None where any name will do.
    """

    read: Callable[[str, bytes], bytes | None]
    has_lease: Callable[[], bool]
    bytes_max: int
    tables: Collection[str] | None = None


class Context:
    """What a handler sees beside its event, and where its writes and events are staged.

    Attributes:
        key: of the message.
        message_id: of the message.
        headers: of the source record, untouched.
        now_ms: epoch ms at the start of this call; use it where a test must own time.
    """

    # Made once a message: a plain class with slots costs a third of a frozen dataclass.
    __slots__ = (
        "_attempt",
        "_consumer",
        "_surroundings",
        "emissions",
        "headers",
        "is_open",
        "key",
        "message_id",
        "now_ms",
        "writes",
    )

    def __init__(
        self,
        consumer: Consumer,
        key: str,
        message_id: str,
        headers: Headers,
        attempt: Attempt | None,
        now_ms: int,
        surroundings: Surroundings,
    ) -> None:
        self.key = key
        self.message_id = message_id
        self.headers = headers
        self.now_ms = now_ms
        self.writes: dict[tuple[str, bytes], bytes | None] = {}
        self.emissions: list[Emission] = []
        self.is_open = True
        self._consumer = consumer
        self._attempt = attempt
        self._surroundings = surroundings

    @property
    def attempt(self) -> int:
        """Which call of this message this is, counted from 1; 0 in a dead-letter hook."""
        return 0 if self._attempt is None else self._attempt.number

    @property
    def attempt_in_round(self) -> int:
        """Which call of this round of immediate attempts, counted from 1; 0 in a hook."""
        return 0 if self._attempt is None else self._attempt.in_round

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self._consumer.name

    def get(self, table: str, key: bytes) -> bytes | None:
        """A row as this unit of work sees it: its own writes first, then what is finished."""
        value = self.writes.get((table, key), _ABSENT)
        return self._surroundings.read(table, key) if value is _ABSENT else value

    def put(self, table: str, key: bytes, value: bytes | None) -> None:
        """Stage a row; None deletes it.

        Raises:
            UnitOfWorkError: the handler has returned already, or this can be no row.
            RecordTooLargeError: the broker would not take the row.
        """
        around = self._surroundings
        if (
            self.is_open
            and type(key) is bytes
            and (value is None or type(value) is bytes)
            and len(key) + len(value or b"") <= around.bytes_max
            and (around.tables is None or table in around.tables)
        ):
            self.writes[table, key] = value
        else:
            self._refuse_row(table, key, value)

    def emit(self, topic: str, event: Any, key: str | None = None) -> str:
        """Stage an event: published once, with the message's own effects, or never.

        Args:
            topic: name of the topic.
            event: one of the event classes, or anything orjson encodes.
            key: record key; the message's own key when not given.

        Returns:
            The event's message id, derived from consumer, source message and ordinal, so
            that a second run of the same message emits the same id.

        Raises:
            UnitOfWorkError: the handler has returned already, or the consumer did not
                declare that it emits to the topic.
            RecordTooLargeError: the broker would not take the event.
        """
        consumer = self._consumer
        if not self.is_open or (consumer.emits is not None and topic not in consumer.emits):
            self._refuse_event(topic)
        value = orjson.dumps(event, default=to_document, option=orjson.OPT_PASSTHROUGH_DATACLASS)
        raw_key = (self.key if key is None else key).encode()
        # A hook's events have ids of their own, from negative ordinals: a replay of the dead
        # letter that succeeds must not meet the id under which the failure was told.
        told = len(self.emissions)
        ordinal = told if self._attempt is not None else -1 - told
        message_id = emitted_id(consumer.name, self.message_id, ordinal)
        cause = inbox_id(self.message_id).encode()
        headers: list[tuple[str, bytes | None]] = [
            (MESSAGE_ID, message_id.encode()),
            (CAUSATION_ID, cause),
        ]
        size = len(raw_key) + len(value) + len(cause)
        if len(self.headers) > 1:  # more than the message id itself
            traced = propagated(self.headers)
            headers += traced
            size += sum(len(content or b"") for _, content in traced)
        if size > self._surroundings.bytes_max:
            self._refuse_size(size, f"an event for topic {topic!r}")
        self.emissions.append(Emission(topic, raw_key, value, headers))
        return message_id

    def ensure_lease(self) -> None:
        """Call it right before each call to an outside system.

        Raises:
            LeaseLostError: the group may have given the partition to another worker. The
                engine repeats the attempt here or leaves it to the new owner; let it out.
        """
        if not self._surroundings.has_lease():
            raise LeaseLostError(
                f"{self.consumer} may not own key {self.key!r} any more: the group has not "
                "heard of this worker for a whole session timeout."
            )

    def _refuse_row(self, table: str, key: object, value: object) -> None:
        self._check_open()
        tables = self._surroundings.tables
        if tables is not None and table not in tables:
            raise UnitOfWorkError(f"There is no table {table!r} in this app's engine.")
        if type(key) is bytes and (value is None or type(value) is bytes):
            self._refuse_size(len(key) + len(value or b""), f"a row of table {table!r}")
        raise UnitOfWorkError(
            f"A row of table {table!r} is bytes under bytes, not {type(value).__name__} under "
            f"{type(key).__name__}."
        )

    def _refuse_event(self, topic: str) -> None:
        self._check_open()
        name = self._consumer.name
        raise UnitOfWorkError(
            f"{name} emits to {topic!r} without saying so: add it to emits= where the "
            "consumer is declared."
        )

    def _check_open(self) -> None:
        if not self.is_open:
            raise UnitOfWorkError(
                f"The unit of work of message {self.message_id!r} has ended: a task that outlives "
                "its handler can write and emit nothing."
            )

    def _refuse_size(self, size: int, what: str) -> None:
        raise RecordTooLargeError(
            f"Message {self.message_id!r} makes {what} of {size} bytes; topics."
            f"message_bytes_max allows {self._surroundings.bytes_max}."
        )
