"""One message's unit of work: nothing of it exists before its handler returns."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextvars import ContextVar
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


class Context:
    """What a handler sees beside its event, and where its writes and events are staged.

    Attributes:
        key: of the message.
        message_id: of the message.
        headers: of the source record, untouched.
        attempt: which call of this message this is, counted from 1; 0 in a dead-letter hook.
        attempt_in_round: which call of this round of immediate attempts, counted from 1.
        now_ms: epoch ms at the start of this call; use it where a test must own time.
    """

    # Made once a message: a plain class with slots costs a third of a frozen dataclass.
    __slots__ = (
        "_bytes_max",
        "_consumer",
        "_has_lease",
        "_ordinal",
        "_ordinal_step",
        "_read",
        "_tables",
        "attempt",
        "attempt_in_round",
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
        read: Callable[[str, bytes], bytes | None],
        has_lease: Callable[[], bool],
        bytes_max: int,
        tables: Collection[str] | None = None,
    ) -> None:
        self.key = key
        self.message_id = message_id
        self.headers = headers
        self.now_ms = now_ms
        self.writes: dict[tuple[str, bytes], bytes | None] = {}
        self.emissions: list[Emission] = []
        self.is_open = True
        self._consumer = consumer
        self._read = read
        self._has_lease = has_lease
        self._tables = tables
        self._bytes_max = bytes_max
        if attempt is not None:
            self.attempt, self.attempt_in_round = attempt.number, attempt.in_round
            self._ordinal = 0
            self._ordinal_step = 1
        else:
            # A hook's events have ids of their own: a replay of the dead letter that succeeds
            # must not meet the id under which the failure was told.
            self.attempt = self.attempt_in_round = 0
            self._ordinal = self._ordinal_step = -1

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self._consumer.name

    def get(self, table: str, key: bytes) -> bytes | None:
        """A row as this unit of work sees it: its own writes first, then what is finished."""
        value = self.writes.get((table, key), _ABSENT)
        return self._read(table, key) if value is _ABSENT else value

    def put(self, table: str, key: bytes, value: bytes | None) -> None:
        """Stage a row; None deletes it.

        Raises:
            UnitOfWorkError: the handler has returned already, or this can be no row.
            RecordTooLargeError: the broker would not take the row.
        """
        self._check_open()
        if self._tables is not None and table not in self._tables:
            raise UnitOfWorkError(f"There is no table {table!r} in this app's engine.")
        if type(key) is not bytes or not (value is None or type(value) is bytes):
            raise UnitOfWorkError(
                f"A row of table {table!r} is bytes under bytes, not {type(value).__name__} under "
                f"{type(key).__name__}."
            )
        self._check_size(len(key) + len(value or b""), f"a row of table {table!r}")
        self.writes[table, key] = value

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
        self._check_open()
        consumer = self._consumer
        if consumer.emits is not None and topic not in consumer.emits:
            raise UnitOfWorkError(
                f"{consumer.name} emits to {topic!r} without saying so: add it to emits= where the "
                "consumer is declared."
            )
        value = orjson.dumps(event, default=to_document, option=orjson.OPT_PASSTHROUGH_DATACLASS)
        raw_key = (self.key if key is None else key).encode()
        message_id = emitted_id(consumer.name, self.message_id, self._ordinal)
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
        self._check_size(size, f"an event for topic {topic!r}")
        self._ordinal += self._ordinal_step
        self.emissions.append(Emission(topic, raw_key, value, headers))
        return message_id

    def ensure_lease(self) -> None:
        """Call it right before each call to an outside system.

        Raises:
            LeaseLostError: the group may have given the partition to another worker. The
                engine repeats the attempt here or leaves it to the new owner; let it out.
        """
        if not self._has_lease():
            raise LeaseLostError(
                f"{self.consumer} may not own key {self.key!r} any more: the group has not "
                "heard of this worker for a whole session timeout."
            )

    def _check_open(self) -> None:
        if not self.is_open:
            raise UnitOfWorkError(
                f"The unit of work of message {self.message_id!r} has ended: a task that outlives "
                "its handler can write and emit nothing."
            )

    def _check_size(self, size: int, what: str) -> None:
        if size > self._bytes_max:
            raise RecordTooLargeError(
                f"Message {self.message_id!r} makes {what} of {size} bytes; topics."
                f"message_bytes_max allows {self._bytes_max}."
            )
