"""A source record as bytes, so that it can wait in the parking lot unchanged."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_FORMAT = 1
# format, partition, offset, timestamp in ms, number of headers
_FIXED = struct.Struct(">BIqqI")
_LENGTH = struct.Struct(">i")
_NONE = -1


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record with everything that its handler, or its dead letter, can need later."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def pack(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]],
) -> bytes:
    """The bytes that `unpack` reads: the value as it is, not escaped, so hardly longer than it."""
    parts = [_FIXED.pack(_FORMAT, partition, offset, timestamp, len(headers))]
    fields = [topic.encode(), key]
    for name, content in headers:
        fields += (name.encode(), content)
    for field in (*fields, value):
        if field is None:
            parts.append(_LENGTH.pack(_NONE))
        else:
            parts += (_LENGTH.pack(len(field)), field)
    return b"".join(parts)


def unpack(raw: bytes) -> StoredRecord:
    """Read what `pack` wrote.

    Raises:
        ValueError: the bytes are of another format or are cut.
    """
    try:
        version, partition, offset, timestamp, count = _FIXED.unpack_from(raw)
        if version != _FORMAT:
            raise ValueError(f"A parked message is of format {version}; this version reads 1.")
        at = _FIXED.size
        fields: list[bytes | None] = []
        for _ in range(2 * count + 3):
            (length,) = _LENGTH.unpack_from(raw, at)
            at += _LENGTH.size
            if length == _NONE:
                fields.append(None)
                continue
            if length < 0 or at + length > len(raw):
                raise ValueError("A parked message is cut.")
            fields.append(raw[at : at + length])
            at += length
    except struct.error as error:
        raise ValueError(f"A parked message is cut: {error}.") from error
    topic, key, *pairs, value = fields
    headers = [
        ((name or b"").decode(), content)
        for name, content in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    return StoredRecord((topic or b"").decode(), partition, offset, timestamp, key, value, headers)


def shown(record: StoredRecord) -> dict[str, object]:
    """A record as a view shows it: text where it is text, else what bytes look like."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(content)] for name, content in record.headers],
    }


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")
