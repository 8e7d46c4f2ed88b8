"""Makes the dead letter of a record: its key, value and headers as they were, and why it is one."""

from __future__ import annotations

from bookstore_streams.core.classify import CAUSE_CHARACTERS_MAX
from bookstore_streams.core.effects import DeadLetter
from bookstore_streams.core.envelope import (
    DLT_EXCEPTION_MESSAGE,
    DLT_EXCEPTION_TYPE,
    DLT_REASON,
    MESSAGE_ID,
    ORIGINAL_POSITION,
    RETRY_ATTEMPT,
    RETRY_NOT_BEFORE,
    TRACEPARENT,
    TRACESTATE,
    position_text,
    propagated,
    with_headers,
)
from bookstore_streams.ports import Emission, Record

#: On a dead letter that did not fit: the bytes that the whole value, and the whole key, had.
DLT_VALUE_BYTES = "dlt-value-bytes"
DLT_KEY_BYTES = "dlt-key-bytes"

_OURS = frozenset(
    {
        MESSAGE_ID,
        RETRY_ATTEMPT,
        ORIGINAL_POSITION,
        DLT_EXCEPTION_TYPE,
        DLT_EXCEPTION_MESSAGE,
        DLT_REASON,
        DLT_VALUE_BYTES,
        DLT_KEY_BYTES,
    }
)


def dead_letter(topic: str, record: Record, letter: DeadLetter, bytes_max: int) -> Emission:
    """The record to publish.

    Args:
        topic: the consumer's dead-letter topic.
        record: the source record.
        letter: why it is given up.
        bytes_max: what the topic takes. A record that would be larger loses the end of its
            value, its headers where they alone are too much, and the end of a key that fills
            half of it; `dlt-value-bytes` and `dlt-key-bytes` tell how long they were, and the
            position header where the whole record stands.
    """
    ours: dict[str, str | None] = {
        RETRY_ATTEMPT: str(letter.attempts),
        RETRY_NOT_BEFORE: None,
        ORIGINAL_POSITION: position_text(record.topic, record.partition, record.offset),
        DLT_EXCEPTION_TYPE: letter.error_type,
        DLT_EXCEPTION_MESSAGE: letter.error_message[:CAUSE_CHARACTERS_MAX],
        DLT_REASON: letter.reason,
        DLT_KEY_BYTES: None,
        DLT_VALUE_BYTES: None,
    }
    traced = dict(propagated(record.headers))
    if traced:  # exactly one of each
        for name in (TRACEPARENT, TRACESTATE):
            content = traced.get(name)
            ours[name] = None if content is None else content.decode("utf-8", "backslashreplace")
    key, value, headers = record.key, record.value, with_headers(record.headers, ours)
    if record_bytes(key, value, headers) <= bytes_max:
        return Emission(topic, key, value, headers)
    if key is not None and len(key) > bytes_max // 2:
        headers = with_headers(headers, {DLT_KEY_BYTES: str(len(key))})
        key = key[: bytes_max // 4]
    headers = with_headers(headers, {DLT_VALUE_BYTES: str(len(value or b""))})
    if record_bytes(key, None, headers) > bytes_max:  # theirs alone are too much: ours are kept
        headers = [
            (name, content)
            for name, content in headers
            if name in _OURS and len(content or b"") < bytes_max // len(_OURS) // 2
        ]
    room = bytes_max - record_bytes(key, None, headers)
    return Emission(topic, key, None if value is None else value[:room], headers)


def record_bytes(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> int:
    """An upper bound of what a record takes in a batch of its own, in bytes."""
    # Source: Kafka record format v2: 61 bytes of batch header, and at most 10 + 5 * 3 for
    # the record, 5 + 5 for the lengths of a header.
    pairs = sum(len(name.encode()) + len(content or b"") + 10 for name, content in headers)
    return 96 + len(key or b"") + len(value or b"") + pairs
