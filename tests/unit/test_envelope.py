"""Which bytes are let in, what a rejection says, and what becomes of headers and ids."""

from __future__ import annotations

import hashlib
import uuid

import pytest

from bookstore_streams.core import envelope
from bookstore_streams.core.envelope import (
    DEPTH_MAX,
    Accepted,
    Headers,
    Ignored,
    Reason,
    Rejected,
    accept,
    decode,
    emitted_id,
    inbox_id,
    message_id,
    position_text,
    propagated,
    replay_id,
    with_headers,
)
from bookstore_streams.errors import DecodeError

KNOWN = frozenset({"OrderPlaced", "OrderCancelled"})
VALUE = b'{"type": "OrderPlaced"}'
KEY = b"order-1"
HEADERS: Headers = [("message-id", b"id-1")]
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER_PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


# --- decode -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b" ",
        b"\x00",
        b"\x00\x00\x00\x07{}",
        b"{",
        b"{}{}",
        b"{'a': 1}",
        b'{"a": 1,}',
        b"NaN",
        b'{"amount": NaN}',
        b"[Infinity]",
        b"-Infinity",
        b"nul",
        b"01",
        b"\xff",
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\xc3',
        b"\xef\xbb\xbf{}",
        b'"a\x00b"',
        b"1e400",
        b"9" * 400,
    ],
)
def test_bytes_that_are_no_json_cannot_be_decoded(value: bytes) -> None:
    with pytest.raises(DecodeError, match=r"^The value is no JSON: .+ at byte \d+\.$"):
        decode(value)


def test_json_is_decoded_with_exact_integers_of_64_bits_and_the_last_of_a_name() -> None:
    assert decode(b' {"a": 1, "a": 18446744073709551615} ') == {"a": 2**64 - 1}
    assert decode(b"-9223372036854775808") == -(2**63)


def test_an_integer_beyond_64_bits_becomes_a_float_and_so_no_quantity() -> None:
    assert isinstance(decode(b"18446744073709551616"), float)


def test_nesting_is_let_in_up_to_one_stated_depth() -> None:
    decode(nested(DEPTH_MAX))
    decode(b'{"a":' * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX)
    for levels in (DEPTH_MAX + 1, 500, 1_024, 1_025, 100_000):
        with pytest.raises(DecodeError):
            decode(nested(levels))
        with pytest.raises(DecodeError):
            decode(b'{"a":' * levels + b"1" + b"}" * levels)


def test_many_brackets_are_not_mistaken_for_depth() -> None:
    wide = b"[" + b",".join([b'{"a": []}'] * 1_000) + b"]"
    text = b'{"a": "' + b"[" * 1_000 + b'"}'
    assert decode(wide) == [{"a": []}] * 1_000
    assert decode(text) == {"a": "[" * 1_000}


def test_depth_hidden_behind_wide_levels_is_found() -> None:
    deep = nested(DEPTH_MAX)
    with pytest.raises(DecodeError, match="nested deeper than 128 levels"):
        decode(b'[{"a": []}, ' + deep + b', "x"]')


def test_a_decode_error_copies_nothing_of_the_value() -> None:
    with pytest.raises(DecodeError) as caught:
        decode(b'{"card": "4111111111111111", oops}')
    assert "4111" not in str(caught.value)


# --- headers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        ([("message-id", b"a")], "a"),
        ([("message-id", "書".encode())], "書"),
        ([("ce_id", b"c")], "c"),
        ([("ce_id", b"c"), ("message-id", b"a")], "a"),
        ([("message-id", b"a"), ("ce_id", b"c")], "a"),
        ([("message-id", b"a"), ("message-id", b"b")], "b"),
        ([("message-id", b"")], None),
        ([("message-id", None)], None),
        ([("message-id", b"\xff")], None),
        ([("message-id", b"a"), ("message-id", b"")], None),
        ([("message-id", b""), ("ce_id", b"c")], "c"),
        ([("message-id", b"\xff"), ("ce_id", b"c")], "c"),
        ([("ce_id", b"")], None),
        ([("Message-Id", b"a"), ("id", b"b")], None),
        ([("message-id", b" ")], " "),
    ],
)
def test_the_id_is_the_last_message_id_or_else_the_last_ce_id(
    headers: Headers, expected: str | None
) -> None:
    assert message_id(headers) == expected
    assert message_id(tuple(headers)) == expected


def test_only_a_replayed_record_has_a_replay_id() -> None:
    assert replay_id(HEADERS) is None
    assert replay_id([("replay-id", b"r1"), ("replay-id", b"r2")]) == "r2"
    assert replay_id([("replay-id", b"")]) is None


def test_headers_of_ours_are_replaced_and_all_others_pass_untouched() -> None:
    headers: Headers = [
        ("x", b"1"),
        ("retry-attempt", b"1"),
        ("nothing", None),
        ("x", b"2"),
        ("retry-attempt", b"2"),
        ("dlt-reason", b"permanent"),
    ]
    changed = with_headers(
        headers, {"retry-attempt": "3", "dlt-reason": None, "replay-id": "r1", "absent": None}
    )
    assert changed == [
        ("x", b"1"),
        ("nothing", None),
        ("x", b"2"),
        ("retry-attempt", b"3"),
        ("replay-id", b"r1"),
    ]
    assert len(headers) == 6


def test_a_header_text_that_utf8_cannot_say_is_escaped() -> None:
    assert with_headers([], {"dlt-exception-message": "é \ud800"}) == [
        ("dlt-exception-message", b"\xc3\xa9 \\ud800")
    ]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], []),
        ([("traceparent", PARENT)], [("traceparent", PARENT)]),
        (
            [("tracestate", b"a=1"), ("traceparent", PARENT)],
            [("traceparent", PARENT), ("tracestate", b"a=1")],
        ),
        (
            [
                ("traceparent", PARENT),
                ("tracestate", b"a=1"),
                ("traceparent", OTHER_PARENT),
                ("tracestate", b"b=2"),
            ],
            [("traceparent", OTHER_PARENT), ("tracestate", b"b=2")],
        ),
        ([("traceparent", PARENT), ("traceparent", b"junk")], [("traceparent", PARENT)]),
        ([("traceparent", PARENT), ("tracestate", b"a\nb")], [("traceparent", PARENT)]),
        ([("traceparent", PARENT), ("tracestate", b"a" * 513)], [("traceparent", PARENT)]),
        ([("traceparent", PARENT), ("tracestate", None)], [("traceparent", PARENT)]),
        ([("tracestate", b"a=1")], []),
        ([("traceparent", None)], []),
    ],
)
def test_exactly_one_valid_trace_context_is_passed_on(
    headers: Headers, expected: list[tuple[str, bytes]]
) -> None:
    assert propagated(headers) == expected


@pytest.mark.parametrize(
    "value",
    [
        b"",
        PARENT.upper(),
        PARENT + b"-more",
        PARENT + b"\n",
        PARENT[:-1],
        b"ff" + PARENT[2:],
        b"00-" + b"0" * 32 + PARENT[35:],
        PARENT[:36] + b"0" * 16 + PARENT[52:],
    ],
)
def test_an_invalid_traceparent_is_not_passed_on(value: bytes) -> None:
    assert propagated([("traceparent", value), ("tracestate", b"a=1")]) == []


def test_a_traceparent_of_a_later_version_may_carry_more() -> None:
    later = b"01" + PARENT[2:] + b"-more"
    assert propagated([("traceparent", later)]) == [("traceparent", later)]


def test_header_names_and_reasons_are_those_of_the_contract() -> None:
    assert envelope.MESSAGE_ID == "message-id"
    assert envelope.CE_ID == "ce_id"
    assert envelope.CAUSATION_ID == "causation-id"
    assert envelope.RETRY_ATTEMPT == "retry-attempt"
    assert envelope.RETRY_NOT_BEFORE == "retry-not-before"
    assert envelope.ORIGINAL_POSITION == "original-topic-partition-offset"
    assert envelope.DLT_EXCEPTION_TYPE == "dlt-exception-type"
    assert envelope.DLT_EXCEPTION_MESSAGE == "dlt-exception-message"
    assert envelope.DLT_REASON == "dlt-reason"
    assert envelope.REPLAY_ID == "replay-id"
    assert {reason.value for reason in Reason} == {
        "permanent",
        "attempts-exhausted",
        "deadline-passed",
        "parking-full",
        "undecodable",
        "missing-message-id",
        "missing-key",
        "discarded",
    }


# --- ids --------------------------------------------------------------------------------


def test_a_position_reads_as_the_contract_writes_it() -> None:
    assert position_text("bookstore.orders", 2, 41) == "bookstore.orders [[2]] @41"


def test_an_emitted_id_is_derived_as_the_protocol_document_says() -> None:
    named = b"\0".join([b"billing", b"id-1", b"0"])
    assert emitted_id("billing", "id-1", 0) == hashlib.blake2b(named, digest_size=16).hexdigest()
    assert emitted_id("billing", "id-1", 0) == "1bf753fb740f07e39bd787b6c4f29594"


def test_an_emitted_id_depends_on_each_of_its_parts() -> None:
    ids = {
        emitted_id(consumer, source, ordinal)
        for consumer in ("billing", "billing1", "ordering")
        for source in ("id", "id\0", "1\0id", "id-1", str(uuid.UUID(int=1)))
        for ordinal in (-2, -1, 0, 1, 11)
    }
    assert len(ids) == 3 * 5 * 5
    assert all(len(each) == 32 and each.isalnum() and each.isascii() for each in ids)


def test_an_id_of_up_to_512_bytes_is_stored_as_it_is_and_a_longer_one_as_its_digest() -> None:
    for short in ("", "id-1", "x" * 512, "書" * 170):
        assert inbox_id(short) == short
    for long in ("x" * 513, "書" * 171, "x" * 1_000_000):
        stored = inbox_id(long)
        assert stored == "sha256:" + hashlib.sha256(long.encode()).hexdigest()
        assert inbox_id(stored) == stored


# --- accept -----------------------------------------------------------------------------


def test_a_sound_record_is_accepted_as_text_and_document() -> None:
    assert accept(VALUE, KEY, HEADERS, KNOWN) == Accepted(
        "order-1", "id-1", {"type": "OrderPlaced"}
    )


def test_the_schema_of_a_known_type_is_not_looked_at_here() -> None:
    assert isinstance(
        accept(b'{"type": "OrderPlaced", "lines": -1}', KEY, HEADERS, KNOWN), Accepted
    )


@pytest.mark.parametrize("known", [KNOWN, None])
@pytest.mark.parametrize("key", [KEY, b"", None, b"\xff"])
@pytest.mark.parametrize("headers", [HEADERS, []])
def test_a_tombstone_is_ignored_whatever_it_lacks(
    known: frozenset[str] | None, key: bytes | None, headers: Headers
) -> None:
    assert accept(None, key, headers, known) == Ignored("tombstone")


@pytest.mark.parametrize("key", [KEY, b"", None, b"\xff"])
@pytest.mark.parametrize("headers", [HEADERS, []])
@pytest.mark.parametrize("type_json", [b'"Other"', b'""', b'"orderplaced"', b'"OrderPlaced "'])
def test_an_unknown_type_is_ignored_whatever_it_lacks(
    key: bytes | None, headers: Headers, type_json: bytes
) -> None:
    value = b'{"type": ' + type_json + b"}"
    assert accept(value, key, headers, KNOWN) == Ignored("unknown-type")


UNDECODABLE = b"{"
NO_OBJECT = b"[]"


@pytest.mark.parametrize(
    ("value", "key", "headers", "reason"),
    [
        (VALUE, None, HEADERS, Reason.MISSING_KEY),
        (VALUE, b"", HEADERS, Reason.MISSING_KEY),
        (VALUE, None, [], Reason.MISSING_KEY),
        (UNDECODABLE, None, [], Reason.MISSING_KEY),
        (UNDECODABLE, b"", HEADERS, Reason.MISSING_KEY),
        (NO_OBJECT, None, [], Reason.MISSING_KEY),
        (VALUE, KEY, [], Reason.MISSING_MESSAGE_ID),
        (UNDECODABLE, KEY, [], Reason.MISSING_MESSAGE_ID),
        (NO_OBJECT, KEY, [], Reason.MISSING_MESSAGE_ID),
        (VALUE, b"\xff", [], Reason.MISSING_MESSAGE_ID),
        (VALUE, KEY, [("message-id", b"")], Reason.MISSING_MESSAGE_ID),
        (UNDECODABLE, KEY, HEADERS, Reason.UNDECODABLE),
        (b"", KEY, HEADERS, Reason.UNDECODABLE),
        (UNDECODABLE, b"\xff", HEADERS, Reason.UNDECODABLE),
        (VALUE, b"\xff", HEADERS, Reason.UNDECODABLE),
        (NO_OBJECT, b"\xff", HEADERS, Reason.UNDECODABLE),
        (NO_OBJECT, KEY, HEADERS, Reason.PERMANENT),
        (b"null", KEY, HEADERS, Reason.PERMANENT),
        (b"{}", KEY, HEADERS, Reason.PERMANENT),
        (b'{"type": null}', KEY, HEADERS, Reason.PERMANENT),
        (b'{"type": ["OrderPlaced"]}', KEY, HEADERS, Reason.PERMANENT),
    ],
)
def test_of_several_faults_the_first_of_the_contract_is_given(
    value: bytes, key: bytes | None, headers: Headers, reason: Reason
) -> None:
    rejected = accept(value, key, headers, KNOWN)
    assert isinstance(rejected, Rejected)
    assert rejected.reason is reason
    assert rejected.error_type == (
        "DecodeError" if reason is Reason.UNDECODABLE else "PermanentError"
    )
    assert rejected.key == ("order-1" if key == KEY else None)
    assert rejected.message_id == ("id-1" if headers is HEADERS else None)
    assert 0 < len(rejected.error_message) <= 300


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"null", "expected an object, found null"),
        (b'"4111111111111111"', "expected an object, found a string of 16 characters"),
        (b"{}", "type: expected a string, found nothing"),
        (b'{"type": null}', "type: expected a string, found null"),
    ],
)
def test_a_permanent_rejection_says_what_was_found_in_the_words_of_parse(
    value: bytes, message: str
) -> None:
    rejected = accept(value, KEY, HEADERS, KNOWN)
    assert isinstance(rejected, Rejected)
    assert rejected.error_message == message


def test_a_record_without_an_id_is_known_by_its_position_where_one_is_given() -> None:
    position = position_text("bookstore.orders", 2, 41)
    accepted = accept(VALUE, KEY, [], KNOWN, position)
    assert isinstance(accepted, Accepted)
    assert accepted.message_id == "bookstore.orders [[2]] @41"
    own = accept(VALUE, KEY, HEADERS, KNOWN, position)
    assert isinstance(own, Accepted)
    assert own.message_id == "id-1"
    rejected = accept(UNDECODABLE, KEY, [], KNOWN, position)
    assert isinstance(rejected, Rejected)
    assert (rejected.reason, rejected.message_id) == (Reason.UNDECODABLE, position)
    keyless = accept(VALUE, None, [], KNOWN, position)
    assert isinstance(keyless, Rejected)
    assert (keyless.reason, keyless.message_id) == (Reason.MISSING_KEY, position)


@pytest.mark.parametrize("value", [b"{}", b"[]", b"null", b"7", b'{"type": 7}', b'{"type": "X"}'])
def test_a_consumer_without_declared_types_gets_every_json_value(value: bytes) -> None:
    assert isinstance(accept(value, KEY, HEADERS, None), Accepted)


def test_a_consumer_without_declared_types_still_gets_no_faulty_record() -> None:
    rejected = [
        accept(b"{}", None, HEADERS, None),
        accept(b"{}", KEY, [], None),
        accept(b"{", KEY, HEADERS, None),
    ]
    assert [each.reason for each in rejected if isinstance(each, Rejected)] == [
        Reason.MISSING_KEY,
        Reason.MISSING_MESSAGE_ID,
        Reason.UNDECODABLE,
    ]
