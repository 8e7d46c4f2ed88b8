"""What bounds one partition of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds; docs/settings.md tells of each what raising it does.

    Attributes:
        concurrency: handlers at once, each for another key.
        backlog_max: messages in memory at which no more are fetched.
        commit_interval_ms: the longest a finished message waits for its transaction to begin.
        commit_messages_max: finished messages at which it does not wait.
        message_bytes_max: of a row or event that a handler makes.
        row_bytes_max: of a parked message or a dead letter.
        inbox_retention_ms: how long an id is known.
        shutdown_ms: by then everything is given back.
    """

    concurrency: int = 32
    backlog_max: int = 4_000
    commit_interval_ms: int = 50
    commit_messages_max: int = 2_000
    message_bytes_max: int = 1_000_000
    row_bytes_max: int = 4_194_304
    inbox_retention_ms: int = 604_800_000
    shutdown_ms: int = 10_000
