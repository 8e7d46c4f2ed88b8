"""Makes the dead letter of a record: its key, value and headers as they were, and why it is one."""

from __future__ import annotations

from bookstore_streams.core.classify import CAUSE_CHARACTERS_MAX
from bookstore_streams.core.effects import DeadLetter
from bookstore_streams.core.envelope import (
    DLT_EXCEPTION_MESSAGE,
    DLT_EXCEPTION_TYPE,
    DLT_REASON,
    ORIGINAL_POSITION,
    RETRY_ATTEMPT,
    RETRY_NOT_BEFORE,
    position_text,
    with_headers,
)
from bookstore_streams.ports import Emission, Record

#: On a dead letter whose value did not fit: the bytes the whole value had.
DLT_VALUE_BYTES = "dlt-value-bytes"


def dead_letter(topic: str, record: Record, letter: DeadLetter, bytes_max: int) -> Emission:
    """The record to publish.

    Args:
        topic: the consumer's dead-letter topic.
        record: the source record.
        letter: why it is given up.
        bytes_max: what the topic takes. A record that would be larger loses the end of its
            value, and its headers where even that is not enough; `dlt-value-bytes` tells how
            long the value was and the position header where the whole record stands.
    """
    ours = {
        RETRY_ATTEMPT: str(letter.attempts),
        RETRY_NOT_BEFORE: None,
        ORIGINAL_POSITION: position_text(record.topic, record.partition, record.offset),
        DLT_EXCEPTION_TYPE: letter.error_type,
        DLT_EXCEPTION_MESSAGE: letter.error_message[:CAUSE_CHARACTERS_MAX],
        DLT_REASON: letter.reason,
        DLT_VALUE_BYTES: None,
    }
    value, headers = record.value, with_headers(record.headers, ours)
    excess = record_bytes(record.key, value, headers) - bytes_max
    if excess <= 0:
        return Emission(topic, record.key, value, headers)
    whole = len(value or b"")
    kept = whole - excess - len(DLT_VALUE_BYTES) - 64
    if kept < 0:  # the headers alone are too much: ours are kept, theirs are not
        headers, kept = with_headers((), ours), 0
    return Emission(
        topic,
        record.key,
        None if value is None else value[:kept],
        with_headers(headers, {DLT_VALUE_BYTES: str(whole)}),
    )


def record_bytes(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> int:
    """An upper bound of what a record takes in a batch of its own, in bytes."""
    # Source: Kafka record format v2: 61 bytes of batch header, and at most 10 + 5 * 3 for
    # the record, 5 + 5 for the lengths of a header.
    pairs = sum(len(name.encode()) + len(content or b"") + 10 for name, content in headers)
    return 96 + len(key or b"") + len(value or b"") + pairs
