"""What a consumer declares: its topics, its handler, and what to do when the handler fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bookstore_streams.core.effects import DeadLetter
from bookstore_streams.core.policy import Policy

from .unit_of_work import Context

#: Handles one event: returns when it is applied, raises when it is not.
Handler = Callable[[Any, Context], Awaitable[None]]

#: Runs with the dead letter of an event that could be read; may write rows and emit events.
DeadLetterHook = Callable[[Any, DeadLetter, Context], Awaitable[None]]


def _as_it_is(document: Any) -> Any:
    return document


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer of the app: same message, other consumer, other rows.

    Attributes:
        name: lower-case letters, digits, `_` and `-`; part of row keys and topic names.
        topics: names of the topics it reads; one queue per key over all of them.
        handle: called once per attempt, one message of a key at a time.
        dead_letter_topic: where its lasting failures go.
        policy: how often and how long it retries.
        parse: makes an event of a decoded document; raises `PermanentError` where it cannot.
        known_types: values of the field `type` that it handles; other types and tombstones
            are ignored and counted. None hands it every decoded value and keeps no schema.
        emits: names of the topics that it may emit to; None for any that exists.
        on_dead_letter: its compensation, in the transaction of the dead letter.
        transient: exception types of its own that pass, beside the general list.
        deadline_from: epoch ms in the event that the policy's deadline counts from.
        handler_timeout_ms: a call that takes longer is cancelled and counts as a timeout.
        missing_id_from_offset: take topic, partition and offset for a missing message id.
    """

    name: str
    topics: tuple[str, ...]
    handle: Handler
    dead_letter_topic: str
    policy: Policy = field(default_factory=Policy)
    parse: Callable[[Any], Any] = _as_it_is
    known_types: frozenset[str] | None = None
    emits: frozenset[str] | None = None
    on_dead_letter: DeadLetterHook | None = None
    transient: tuple[type[BaseException], ...] = ()
    deadline_from: Callable[[Any], int | None] | None = None
    handler_timeout_ms: int = 30_000
    missing_id_from_offset: bool = False
