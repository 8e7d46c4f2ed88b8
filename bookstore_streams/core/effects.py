"""What the core can order. A shell carries effects out one after another and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from .inbox import Outcome
from .parking import ParkedKey


@dataclass(frozen=True, slots=True)
class Attempt:
    """Call the handler; the outcome comes back to `decide` together with this effect.

    Attributes:
        number: which call of this message it is, counted from 1.
        in_round: which call of this round, counted from 1.
        rounds: rounds that failed before this one.
    """

    number: int
    in_round: int
    rounds: int


@dataclass(frozen=True, slots=True)
class RetryInLane:
    """Wait `delay_ms` with only this key waiting, then make `attempt`."""

    delay_ms: int
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class ApplyWork:
    """Add what the handler wrote and emitted to the next commit."""


@dataclass(frozen=True, slots=True)
class SaveInbox:
    """Write the inbox row of the message."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SaveMessage:
    """Write the message into the parking lot under this sequence."""

    sequence: int


@dataclass(frozen=True, slots=True)
class DropMessage:
    """Delete the row of this sequence from the parking lot."""

    sequence: int


@dataclass(frozen=True, slots=True)
class SaveKey:
    """Write the row of the parked key, and wake it at its due time."""

    key: ParkedKey


@dataclass(frozen=True, slots=True)
class DropKey:
    """Delete the row of the parked key: it flows again."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Run the consumer's hook where the event could be read, then emit the dead letter.

    A hook that fails comes back to `decide` as `HookFailed` and the rest is not done.

    Attributes:
        reason: one word of the contract's list.
        error_type, error_message: of the last failure.
        attempts: calls of the handler the message had.
    """

    reason: str
    error_type: str
    error_message: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The source record needs no more of this consumer: its offset may be committed with this."""


@dataclass(frozen=True, slots=True)
class Count:
    """Add one to a counter of this consumer, so that nothing happens silently."""

    name: str


Effect = (
    Attempt
    | RetryInLane
    | ApplyWork
    | SaveInbox
    | SaveMessage
    | DropMessage
    | SaveKey
    | DropKey
    | DeadLetter
    | Settle
    | Count
)
