"""What surrounds an event on the wire: headers, ids, and the rule for what is let in.

Owns the header names, `decode` (bytes to JSON), `accept` (a record's bytes to a message, a
rejection with its reason, or nothing to do) and the derivation of ids. Refuses what an
event means (see `events`) and what becomes of a message (see `decide`).

Headers are Kafka's: a sequence of (name, value) in which a name may come several times and
a value may be null. Names are case-sensitive, and of several the last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b, sha256
from typing import Final, Literal, NamedTuple

import orjson

from bookstore_streams.core.events import describe
from bookstore_streams.errors import BookstoreError, DecodeError, PermanentError

MESSAGE_ID: Final = "message-id"
CE_ID: Final = "ce_id"
CAUSATION_ID: Final = "causation-id"
RETRY_ATTEMPT: Final = "retry-attempt"
RETRY_NOT_BEFORE: Final = "retry-not-before"
ORIGINAL_POSITION: Final = "original-topic-partition-offset"
DLT_EXCEPTION_TYPE: Final = "dlt-exception-type"
DLT_EXCEPTION_MESSAGE: Final = "dlt-exception-message"
DLT_REASON: Final = "dlt-reason"
REPLAY_ID: Final = "replay-id"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

# orjson reads 1,024 levels but writes only 254, and Python itself gives up on comparing or
# printing about 1,000. A document that is let in must survive all of that, inside the rows
# and pages that hold it, so the bound is ours and well below each of theirs.
DEPTH_MAX: Final = 128

# An inbox row's key is (consumer, message id); a longer id is stored as its digest.
INBOX_ID_BYTES_MAX: Final = 512
_UTF8_BYTES_MAX: Final = 4  # of one character

# 128 bits: two in 10^15 ids are the same with a probability below 10^-8.
_EMITTED_ID_BYTES: Final = 16

Headers = Sequence[tuple[str, bytes | None]]


class Reason(StrEnum):
    """Why a message is a dead letter, as header `dlt-reason` says it."""

    PERMANENT = "permanent"
    ATTEMPTS_EXHAUSTED = "attempts-exhausted"
    DEADLINE_PASSED = "deadline-passed"
    PARKING_FULL = "parking-full"
    UNDECODABLE = "undecodable"
    MISSING_MESSAGE_ID = "missing-message-id"
    MISSING_KEY = "missing-key"
    DISCARDED = "discarded"


class Accepted(NamedTuple):
    """A record that is a message; whether it is a valid event is for `events.parse` to say.

    A named tuple because there is one for every record: half the cost of a frozen dataclass.

    Attributes:
        key: the record's key, never empty.
        message_id: never empty.
        document: the decoded value.
    """

    key: str
    message_id: str
    document: object


@dataclass(frozen=True, slots=True)
class Ignored:
    """A record that the consumer does not want: to be counted and settled."""

    cause: Literal["tombstone", "unknown-type"]


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that goes to the dead letters without an attempt.

    Attributes:
        reason: the first fault, in the order of `accept`.
        error_type: class name for header `dlt-exception-type`.
        error_message: one sentence for header `dlt-exception-message`; copies no value.
        key: None where the record has none, or none that is text.
        message_id: None where the record has none and none was given for it.
    """

    reason: Reason
    error_type: str
    error_message: str
    key: str | None
    message_id: str | None


_TOMBSTONE: Final = Ignored("tombstone")
_UNKNOWN_TYPE: Final = Ignored("unknown-type")


def accept(
    value: bytes | None,
    key: bytes | None,
    headers: Headers,
    known_types: frozenset[str] | None,
    missing_id_position: str | None = None,
) -> Accepted | Ignored | Rejected:
    """Sort a record out by its bytes alone; never raises, whatever arrives.

    A tombstone, and an object whose `type` is a text outside `known_types`, is ignored
    whatever else it lacks. Of several faults the first of missing-key, missing-message-id,
    undecodable, permanent is given; permanent here means: not an object, or no `type`.

    Args:
        value: None is a tombstone.
        key: null and empty are both missing; what is no UTF-8 is undecodable.
        headers: of the record.
        known_types: what the consumer handles; None accepts every JSON value.
        missing_id_position: id to use for a record that has none; None rejects it.
    """
    if value is None:
        return _TOMBSTONE
    document: object = None
    error: BookstoreError | None = None
    try:
        document = decode(value)
    except DecodeError as undecodable:
        error = undecodable
    else:
        if known_types is not None:
            name = document.get("type") if type(document) is dict else None
            if type(name) is not str:
                error = _schema_error(document)
            elif name not in known_types:
                return _UNKNOWN_TYPE

    identity = message_id(headers) or missing_id_position
    key_text = _text(key)
    if key_text is not None and identity is not None and error is None:
        return Accepted(key_text, identity, document)
    return _rejected(key, key_text, identity, error)


def _schema_error(document: object) -> PermanentError:
    if type(document) is dict:
        found = describe(document["type"]) if "type" in document else "nothing"
        return PermanentError(f"type: expected a string, found {found}")
    return PermanentError(f"expected an object, found {describe(document)}")


def _rejected(
    key: bytes | None, key_text: str | None, identity: str | None, error: BookstoreError | None
) -> Rejected:
    reason = Reason.UNDECODABLE
    if not key:
        reason = Reason.MISSING_KEY
        error = PermanentError(
            "The record has no key, so its order cannot be kept; produce it with one."
        )
    elif identity is None:
        reason = Reason.MISSING_MESSAGE_ID
        error = PermanentError(
            f"The record has no {MESSAGE_ID} (nor {CE_ID}) header; produce it with a unique one,"
            ' or set missing_id = "offset".'
        )
    elif key_text is None:
        error = DecodeError("The key is not UTF-8.")
    elif isinstance(error, PermanentError):
        reason = Reason.PERMANENT
    return Rejected(reason, type(error).__name__, str(error), key_text, identity)


def decode(value: bytes) -> object:
    """The JSON value that the bytes stand for.

    Of a name that an object has twice, the last value counts. An integer beyond 64 bits
    becomes a float; a number beyond a float's range is an error.

    Raises:
        DecodeError: the bytes are no JSON: none at all, no UTF-8, a byte order mark, NaN or
            Infinity, something after the end, or more than `DEPTH_MAX` levels of nesting.
    """
    try:
        document: object = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise DecodeError(f"The value is no JSON: {error.msg} at byte {error.pos}.") from error
    # Counting brackets is cheap and never too low; only many of them are worth a walk.
    if value.count(b"[") + value.count(b"{") > DEPTH_MAX and _depth_exceeds(document, DEPTH_MAX):
        raise DecodeError(f"The value is nested deeper than {DEPTH_MAX} levels.")
    return document


def _depth_exceeds(document: object, depth_max: int) -> bool:
    """Walk level by level, without recursion; ends, since a decoded document has no cycles."""
    level: list[dict[str, object] | list[object]] = []
    if isinstance(document, dict | list):
        level.append(document)
    depth = 0
    while level:
        depth += 1
        if depth > depth_max:
            return True
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
    return False


def message_id(headers: Headers) -> str | None:
    """The id its producer gave the message: `message-id`, else CloudEvents' `ce_id`.

    An id that is null, empty or not UTF-8 counts as missing.
    """
    own: bytes | None = None
    cloud: bytes | None = None
    for name, value in headers:
        if name == MESSAGE_ID:
            own = value
        elif name == CE_ID:
            cloud = value
    if own:
        try:
            return own.decode()
        except UnicodeDecodeError:
            pass
    return _text(cloud)


def replay_id(headers: Headers) -> str | None:
    """Which replay sent this dead letter again; None for every other record."""
    return header_text(headers, REPLAY_ID)


def header_text(headers: Headers, wanted: str) -> str | None:
    """The last header of that name; None when missing, null, empty or not UTF-8."""
    found: bytes | None = None
    for name, value in headers:
        if name == wanted:
            found = value
    return _text(found)


def _text(value: bytes | None) -> str | None:
    if not value:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def with_headers(
    headers: Headers, replaced: Mapping[str, str | None]
) -> list[tuple[str, bytes | None]]:
    """The headers with every copy of these names replaced by one, at the end, in given order.

    None only removes. All others stay as they are and where they are. Applying the same
    names again adds nothing, so headers cannot grow over retries. Never raises: what UTF-8
    cannot say (a lone surrogate) is escaped.
    """
    kept = [header for header in headers if header[0] not in replaced]
    kept += [
        (name, text.encode("utf-8", "backslashreplace"))
        for name, text in replaced.items()
        if text is not None
    ]
    return kept


_CONTEXT: Final = rb"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_is_traceparent: Final = re.compile(
    # Later versions may add fields behind a dash; ff is forbidden.
    b"00" + _CONTEXT + b"|(?!00|ff)[0-9a-f]{2}" + _CONTEXT + rb"(?:-[!-~]{0,200})?"
).fullmatch
_is_tracestate: Final = re.compile(rb"[\t -~]{1,512}").fullmatch


def propagated(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The trace headers to copy to what the message causes: none, or exactly one of each.

    The last valid one of each name counts; a `tracestate` without a valid `traceparent`
    means nothing and is left out.

    Source: W3C Trace Context, sections 3.2 and 3.3.
    """
    parent: bytes | None = None
    state: bytes | None = None
    for name, value in headers:
        if name == TRACEPARENT:
            if value and _is_traceparent(value):
                parent = value
        elif name == TRACESTATE and value and _is_tracestate(value):
            state = value
    if parent is None:
        return []
    if state is None:
        return [(TRACEPARENT, parent)]
    return [(TRACEPARENT, parent), (TRACESTATE, state)]


def position_text(topic: str, partition: int, offset: int) -> str:
    """Where a record is, for people and headers: `bookstore.orders [[2]] @41`."""
    return f"{topic} [[{partition}]] @{offset}"


def emitted_id(consumer: str, source_message_id: str, ordinal: int) -> str:
    """The id of the `ordinal`-th event that a consumer emits for a message: 32 hex digits.

    A second run of the same message gives the same ids, and no two of (consumer, message,
    ordinal) share one. `consumer` holds no NUL, which parts the three.
    """
    name = f"{consumer}\0{source_message_id}\0{ordinal}"
    return blake2b(name.encode(), digest_size=_EMITTED_ID_BYTES).hexdigest()


def inbox_id(message_id: str) -> str:
    """The id as the inbox stores it: itself, or `sha256:<hex>` beyond `INBOX_ID_BYTES_MAX`.

    Applying it to its own result changes nothing, so what a view shows can be looked up.
    """
    if len(message_id) * _UTF8_BYTES_MAX <= INBOX_ID_BYTES_MAX:
        return message_id
    raw = message_id.encode()
    if len(raw) <= INBOX_ID_BYTES_MAX:
        return message_id
    return "sha256:" + sha256(raw).hexdigest()
