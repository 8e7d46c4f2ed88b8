"""How the parking lot is shown: the same words in the web's views and on the command line.

Owns the shape of what people and programs read; decides nothing and reads no store.
"""

from __future__ import annotations

from typing import Any

from bookstore_streams.core.envelope import message_id
from bookstore_streams.core.parking import ParkedKey
from bookstore_streams.core.record import shown, unpack


def key_row(consumer: str, key: str, parked: ParkedKey, *, is_running: bool) -> dict[str, Any]:
    """A parked key as a row of the list.

    Args:
        consumer: name of the consumer.
        key: as text.
        parked: its state.
        is_running: whether its head is being tried right now.
    """
    return {
        "consumer": consumer,
        "key": key,
        "due_ms": parked.due_ms,
        "attempts": parked.attempts,
        "count": parked.count,
        "oldest_ms": parked.oldest_ms,
        "cause": parked.cause,
        "state": "running" if is_running else parked.state.value,
    }


def key_detail(consumer: str, key: str, parked: ParkedKey, *, is_running: bool) -> dict[str, Any]:
    """The row of the list, and with it the attempts that failed, oldest first."""
    history = [
        {
            "at_ms": failed.at_ms,
            "attempt": failed.attempt,
            "message_id": failed.message_id,
            "cause": failed.cause,
        }
        for failed in parked.history
    ]
    return {**key_row(consumer, key, parked, is_running=is_running), "history": history}


def message_row(sequence: int, raw: bytes) -> dict[str, Any]:
    """A parked message: its place in the queue, its id, and the record with its value as text.

    A row of a format that this version cannot read says so instead.
    """
    try:
        record = unpack(raw)
    except ValueError as error:
        return {"sequence": sequence, "error": str(error)}
    return {"sequence": sequence, "message_id": message_id(record.headers), **shown(record)}
