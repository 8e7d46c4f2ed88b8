"""What a dead letter must look like, whoever wrote it."""

from __future__ import annotations

from collections import Counter

from bookstore_streams.testing.memory import MemoryRecord
from tests.simulation.log import Sent, Spec

_ONCE = (
    "message-id",
    "retry-attempt",
    "original-topic-partition-offset",
    "dlt-exception-type",
    "dlt-exception-message",
    "dlt-reason",
)
# kind of record -> reason of its dead letter
_UNREADABLE = {
    "undecodable": "undecodable",
    "broken": "permanent",
    "missing-id": "missing-message-id",
    "missing-key": "missing-key",
}
_TRIED = ("permanent", "attempts-exhausted", "deadline-passed")


def original(record: MemoryRecord) -> tuple[str, int, int]:
    """Topic, partition and offset that a dead letter says it comes from."""
    text = record.header("original-topic-partition-offset") or ""
    topic, _, where = text.partition(" [[")
    number, _, offset = where.partition("]] @")
    return topic, int(number), int(offset)


def what_is_wrong(spec: Spec, record: MemoryRecord, source: Sent) -> str | None:
    """What a dead letter says that cannot be; None when all is well.

    Args:
        spec: of the consumer.
        record: the dead letter.
        source: the record that it says it comes from.
    """
    count = Counter(name for name, _ in record.headers)
    wrong = [name for name in _ONCE if count[name] != 1]
    if source.kind == "missing-id":
        wrong = [name for name in wrong if name != "message-id"]
    if wrong:
        return f"{wrong} do not come once"
    if (record.key, record.value) != (source.record.key, source.record.value):
        return "its key or value is not that of its source"
    reason, attempts = record.header("dlt-reason"), int(record.header("retry-attempt") or -1)
    if source.kind in _UNREADABLE:
        wanted = _UNREADABLE[source.kind]
        return None if (reason, attempts) == (wanted, 0) else f"{reason} after {attempts}"
    if reason not in _TRIED or not 1 <= attempts <= spec.policy.attempts_max:
        return f"{reason} after {attempts} attempts"
    if reason == "attempts-exhausted" and attempts != spec.policy.attempts_max:
        return f"{reason} after {attempts} attempts of {spec.policy.attempts_max}"
    if reason == "deadline-passed" and spec.policy.deadline_ms is None:
        return "there is no deadline that could have passed"
    return None
