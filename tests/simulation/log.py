"""What happened in a history, in order: all that the checkers are given.

Entries are told by the imaginary cluster (what was sent, committed, who was heard of) and by
the app's own handlers (what they were called with). Nothing in here comes from inside the
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bookstore_streams.core.policy import Policy
from bookstore_streams.testing.memory import MemoryRecord


class Spec(NamedTuple):
    """A consumer, as its users see it.

    Attributes:
        name: of the consumer.
        topics: that it reads.
        policy: how it retries.
        has_hook: whether it has a dead-letter hook.
        dead_letter_topic: where its lasting failures go.
    """

    name: str
    topics: tuple[str, ...]
    policy: Policy
    has_hook: bool
    dead_letter_topic: str


class Sent(NamedTuple):
    """A producer sent a record.

    Attributes:
        record: as the broker keeps it.
        message_id: of it, or what stands in for one.
        kind: `message`, `copy` (the same again), `replay` (with a replay-id), or what is
            wrong with it.
        placed_at_ms: what its deadline counts from.
    """

    at_ms: int
    record: MemoryRecord
    message_id: str
    kind: str
    placed_at_ms: int


class Fenced(NamedTuple):
    """The transactional id of a partition has a new epoch: by a worker, or nobody ("")."""

    at_ms: int
    worker: str
    number: int
    epoch: int


class Opened(NamedTuple):
    """A worker that fenced the former owner of a partition knows where to go on."""

    at_ms: int
    worker: str
    number: int
    epoch: int
    offsets: dict[str, int]


class Called(NamedTuple):
    """A handler or a dead-letter hook (`attempt` 0) began."""

    at_ms: int
    worker: str
    consumer: str
    key: str
    message_id: str
    attempt: int
    attempt_in_round: int


class Ended(NamedTuple):
    """A handler or hook ended.

    Attributes:
        result: `ok`, the class name of what it raised, or `cut short`.
        retry_after_ms: that the exception asked for.
        emitted: ids of the events that it emitted.
    """

    at_ms: int
    worker: str
    consumer: str
    key: str
    message_id: str
    attempt: int
    result: str
    retry_after_ms: int | None
    emitted: Sequence[str]


class Asked(NamedTuple):
    """A call to the provider left the worker."""

    at_ms: int
    worker: str
    consumer: str
    key: str
    message_id: str


class Staged(NamedTuple):
    """A record was sent in a transaction that may or may not be committed later."""

    at_ms: int
    worker: str
    table: str
    key: bytes
    value: bytes | None


class Landed(NamedTuple):
    """The broker committed a transaction.

    Attributes:
        records: of it, in order; those of changelogs included.
        marks: topic -> offset committed for the partition number.
    """

    at_ms: int
    worker: str
    number: int
    epoch: int
    records: Sequence[MemoryRecord]
    marks: dict[str, int]


class Silent(NamedTuple):
    """The group hears no more of a worker, whose lease ends at `lease_ends_ms` therefore."""

    at_ms: int
    worker: str
    lease_ends_ms: int


class Heard(NamedTuple):
    """The group hears of a worker again."""

    at_ms: int
    worker: str


class Gone(NamedTuple):
    """A worker's process is no more."""

    at_ms: int
    worker: str


class Fault(NamedTuple):
    """Something goes wrong, or is told to."""

    at_ms: int
    what: str


class Given(NamedTuple):
    """The group has given out the partitions anew.

    Attributes:
        assignment: worker -> partition numbers.
    """

    at_ms: int
    generation: int
    assignment: dict[str, set[int]]


class Quiet(NamedTuple):
    """The second phase begins: nothing goes wrong any more."""

    at_ms: int


Entry = (
    Sent
    | Fenced
    | Opened
    | Called
    | Ended
    | Asked
    | Staged
    | Landed
    | Silent
    | Heard
    | Gone
    | Fault
    | Given
    | Quiet
)


class Log:
    """The entries, and who looks at each as it comes."""

    __slots__ = ("_look", "entries")

    def __init__(self, look: Callable[[Entry], None]) -> None:
        self.entries: list[Entry] = []
        self._look = look

    def add(self, entry: Entry) -> None:
        """Keep an entry, and have it looked at."""
        self.entries.append(entry)
        self._look(entry)


def shown(entry: Entry, start_ms: int) -> str:
    """An entry as one line for people, times from the begin of the history."""
    fields = []
    for name, value in zip(entry._fields[1:], entry[1:], strict=True):
        match value:
            case MemoryRecord():
                fields.append(_record(value))
            case list() | tuple() if value and isinstance(value[0], MemoryRecord):
                fields.append("".join(f"\n{'':14}{_record(each)}" for each in value))
            case int() if name.endswith("_ms"):
                fields.append(f"{name}={value - start_ms if value > start_ms else value}")
            case _:
                fields.append(f"{name}={value!r}" if name != "worker" else str(value))
    return f"{entry.at_ms - start_ms:8} ms {type(entry).__name__:7} {' '.join(fields)}"


def _record(record: MemoryRecord) -> str:
    value = b"-" if record.value is None else record.value[:100]
    key = b"-" if record.key is None else record.key
    names = ",".join(f"{k}={_text(v)}" for k, v in record.headers)
    where = f"{record.topic}/{record.partition}@{record.offset}"
    return f"{where} {_text(key)} {_text(value)}{' ' + names if names else ''}"


def _text(content: bytes | None) -> str:
    if content is None:
        return "-"
    return content.decode("utf-8", "backslashreplace").replace("\0", "\\0")
