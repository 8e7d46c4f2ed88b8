"""What became of a message, per consumer and message id: the row that makes effects happen once."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """Where a message is now. It is in exactly one of these places."""

    APPLIED = "applied"
    PARKED = "parked"
    DEAD_LETTERED = "dead-lettered"


def inbox_key(consumer: str, message_id: str) -> bytes:
    """Key of the inbox row. A consumer's name holds no NUL, so no two pairs share a key."""
    return f"{consumer}\0{message_id}".encode()


def split_inbox_key(key: bytes) -> tuple[str, str]:
    """The (consumer, message id) of an inbox key."""
    consumer, _, message_id = key.decode().partition("\0")
    return consumer, message_id


def inbox_row(
    outcome: Outcome, at_ms: int, key: str | None, topic: str, partition: int, offset: int
) -> dict[str, Any]:
    """The inbox row of one message, as it is stored and shown.

    Args:
        outcome: where the message is.
        at_ms: epoch ms of that.
        key: the record's key; None when it had none.
        topic: where it was read.
        partition: of the topic.
        offset: in the partition.
    """
    return {
        "outcome": outcome,
        "at_ms": at_ms,
        "key": key,
        "topic": topic,
        "partition": partition,
        "offset": offset,
    }


def is_newer(row: Mapping[str, Any], topic: str, partition: int, offset: int) -> bool:
    """Whether a record came after the one that an inbox row tells of.

    A replayed dead letter that is read again after a crash is the one that the row tells
    of, and must not open the row a second time.
    """
    if (row["topic"], row["partition"]) != (topic, partition):
        return True
    return bool(offset > row["offset"])


def is_duplicate(outcome: str | None, is_replay: bool) -> bool:
    """Whether a message whose inbox row tells `outcome` (None: no row) must be dropped.

    A dead-lettered message comes back only by an operator's replay, which marks the record
    with a `replay-id`; another copy of it without one is a duplicate like any other.
    """
    if outcome is None:
        return False
    return not (is_replay and outcome == Outcome.DEAD_LETTERED)
