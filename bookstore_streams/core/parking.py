"""The record of a parked key, and how its rows are keyed; the queue itself is one row a message."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

#: Attempts remembered per parked key; older ones fall off.
HISTORY_MAX = 20

_LENGTH = struct.Struct(">I")
_SEQUENCE = struct.Struct(">Q")


class KeyState(StrEnum):
    """What a parked key waits for."""

    WAITING = "waiting"  # its due time
    HELD = "held"  # an operator


@dataclass(frozen=True, slots=True)
class Attempted:
    """One failed attempt, as an operator reads it.

    Attributes:
        at_ms: epoch ms of the failure.
        attempt: how many calls of the handler the message had by then.
        message_id: of the message that was tried.
        cause: type and text of the failure.
    """

    at_ms: int
    attempt: int
    message_id: str
    cause: str


@dataclass(frozen=True, slots=True)
class Doom:
    """A head that is given up already, but whose dead letter could not be completed yet."""

    reason: str
    error_type: str
    error_message: str


@dataclass(frozen=True, slots=True)
class ParkedKey:
    """A key whose head waits for a retry; messages `head` to `tail - 1` are in the lot.

    Attributes:
        head: sequence of the message to try next.
        tail: sequence the next follower gets; `tail - head` messages wait, at least one.
        attempts: calls of the handler the head had.
        rounds: rounds of attempts the head failed, which the back-off counts.
        due_ms: epoch ms of the earliest next attempt.
        cause: why the last attempt of the key failed.
        oldest_ms: epoch ms at which the key was parked.
        state: what it waits for.
        doom: set when the head is to be dead-lettered without a further call.
        history: the latest failed attempts, oldest first, at most `HISTORY_MAX`.
    """

    head: int
    tail: int
    attempts: int
    rounds: int
    due_ms: int
    cause: str
    oldest_ms: int
    state: KeyState = KeyState.WAITING
    doom: Doom | None = None
    history: tuple[Attempted, ...] = ()

    @property
    def count(self) -> int:
        """Messages in the lot."""
        return self.tail - self.head

    def with_follower(self) -> ParkedKey:
        """The key after one more message took its place at the end."""
        return replace(self, tail=self.tail + 1)

    def with_failure(self, failed: Attempted) -> ParkedKey:
        """The key with one more attempt in its history, its cause the latest."""
        history = (*self.history, failed)[-HISTORY_MAX:]
        return replace(self, cause=failed.cause, history=history)

    def without_head(self, now_ms: int) -> ParkedKey | None:
        """The key after its head was settled: the next one is due at once; None if none is left."""
        if self.count == 1:
            return None
        return replace(self, head=self.head + 1, attempts=0, rounds=0, due_ms=now_ms, doom=None)

    def to_row(self) -> dict[str, Any]:
        """The row as it is stored and shown."""
        return {
            "state": self.state.value,
            "head": self.head,
            "tail": self.tail,
            "count": self.count,
            "attempts": self.attempts,
            "rounds": self.rounds,
            "due_ms": self.due_ms,
            "cause": self.cause,
            "oldest_ms": self.oldest_ms,
            "doom": None
            if self.doom is None
            else [self.doom.reason, self.doom.error_type, self.doom.error_message],
            "history": [[a.at_ms, a.attempt, a.message_id, a.cause] for a in self.history],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ParkedKey:
        """Read what `to_row` wrote."""
        doom = row["doom"]
        return cls(
            head=row["head"],
            tail=row["tail"],
            attempts=row["attempts"],
            rounds=row["rounds"],
            due_ms=row["due_ms"],
            cause=row["cause"],
            oldest_ms=row["oldest_ms"],
            state=KeyState(row["state"]),
            doom=None if doom is None else Doom(*doom),
            history=tuple(Attempted(*entry) for entry in row["history"]),
        )


def parked_key(consumer: str, key: str) -> bytes:
    """Key of the row of a parked key. A consumer's name holds no NUL, so no two pairs share one."""
    return f"{consumer}\0{key}".encode()


def split_parked_key(row_key: bytes) -> tuple[str, str]:
    """The (consumer, key) of such a row key."""
    consumer, _, key = row_key.decode().partition("\0")
    return consumer, key


def message_prefix(consumer: str, key: str) -> bytes:
    """What the row keys of a parked key's messages begin with, and no other key's do."""
    raw = key.encode()
    return b"%b\0%b%b" % (consumer.encode(), _LENGTH.pack(len(raw)), raw)


def message_key(consumer: str, key: str, sequence: int) -> bytes:
    """Key of one parked message's row; byte order within a key is queue order."""
    return message_prefix(consumer, key) + _SEQUENCE.pack(sequence)


def split_message_key(row_key: bytes) -> tuple[str, str, int]:
    """The (consumer, key, sequence) of a parked message's row key."""
    consumer, _, rest = row_key.partition(b"\0")
    (length,) = _LENGTH.unpack_from(rest)
    key = rest[_LENGTH.size : _LENGTH.size + length]
    (sequence,) = _SEQUENCE.unpack_from(rest, _LENGTH.size + length)
    return consumer.decode(), key.decode(), sequence
