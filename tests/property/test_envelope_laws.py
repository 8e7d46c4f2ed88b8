"""Laws of envelope and events over arbitrary bytes, headers, orders and times."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from bookstore_streams.core import envelope, events
from bookstore_streams.core.envelope import (
    Accepted,
    Ignored,
    Reason,
    Rejected,
    accept,
    decode,
    emitted_id,
    inbox_id,
    message_id,
    propagated,
    with_headers,
)
from bookstore_streams.errors import DecodeError, PermanentError

OURS = [
    envelope.MESSAGE_ID,
    envelope.RETRY_ATTEMPT,
    envelope.DLT_REASON,
    envelope.TRACEPARENT,
    envelope.TRACESTATE,
]
NAMES = st.sampled_from([*OURS, envelope.CE_ID, "content-type", ""]) | st.text(max_size=5)
HEADERS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=12)), max_size=12)
# Lone surrogates, which st.text() leaves out: an exception's text may hold them.
ANY_TEXT = st.text(st.characters(), max_size=12) | st.just("\ud800")
REPLACED = st.dictionaries(NAMES, st.none() | ANY_TEXT, max_size=6)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "lines", "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)
TYPES = st.sampled_from([*sorted(events.known_types()), "Other"])
DOCUMENTS = JSON | st.fixed_dictionaries({"type": TYPES}, optional={"lines": JSON})
VALUES = (
    st.none()
    | st.binary(max_size=40)
    | DOCUMENTS.map(lambda document: json.dumps(document).encode())
)
KEYS = st.none() | st.binary(max_size=6) | st.text(min_size=1, max_size=6).map(str.encode)
KNOWN = st.none() | st.just(events.known_types()) | st.just(frozenset[str]())

PRICES = st.decimals(min_value=0, max_value=10**11, places=6).flatmap(
    lambda price: st.sampled_from(
        [format(price, "f"), format(price.quantize(Decimal("0.01")), "f"), str(int(price))]
    )
)
LINES = st.lists(
    st.fixed_dictionaries(
        {
            "sku": st.text(min_size=1, max_size=8),
            "quantity": st.integers(1, events.QUANTITY_MAX),
            "unit_price": PRICES,
        }
    ),
    min_size=1,
    max_size=8,
)


def attempt(
    function: Callable[[Any], Any], argument: object, expected: type[Exception]
) -> tuple[Any, str]:
    """What the function returns, or the text of the one error it may raise."""
    try:
        return function(argument), ""
    except expected as error:
        return None, str(error)


# --- headers ----------------------------------------------------------------------------


@given(HEADERS, REPLACED)
def test_replacing_headers_twice_is_replacing_them_once(
    headers: list[tuple[str, bytes | None]], replaced: dict[str, str | None]
) -> None:
    once = with_headers(headers, replaced)
    assert with_headers(once, replaced) == once


@given(HEADERS, REPLACED)
def test_after_replacing_each_name_stands_once_and_all_others_are_untouched(
    headers: list[tuple[str, bytes | None]], replaced: dict[str, str | None]
) -> None:
    changed = with_headers(headers, replaced)
    others = [header for header in headers if header[0] not in replaced]
    assert changed[: len(others)] == others
    wanted = [name for name, text in replaced.items() if text is not None]
    assert [name for name, _ in changed[len(others) :]] == wanted


@given(
    HEADERS, st.lists(REPLACED.map(lambda each: {n: each.get(n, "1") for n in OURS}), max_size=5)
)
def test_headers_never_grow_over_any_number_of_retries(
    headers: list[tuple[str, bytes | None]], rounds: list[dict[str, str | None]]
) -> None:
    once = len(with_headers(headers, dict.fromkeys(OURS, "1")))
    for replaced in rounds:
        headers = with_headers(headers, replaced)
        assert len(headers) <= once


@given(HEADERS, st.text(min_size=1, max_size=12))
def test_an_id_that_was_written_is_the_id_that_is_read(
    headers: list[tuple[str, bytes | None]], identity: str
) -> None:
    assert message_id(with_headers(headers, {envelope.MESSAGE_ID: identity})) == identity


@given(HEADERS)
def test_at_most_one_trace_header_of_each_name_is_passed_on(
    headers: list[tuple[str, bytes | None]],
) -> None:
    names = [name for name, _ in propagated(headers)]
    assert names in ([], ["traceparent"], ["traceparent", "tracestate"])


# --- records ----------------------------------------------------------------------------


@given(st.binary(max_size=60) | DOCUMENTS.map(lambda document: json.dumps(document).encode()))
@example(b"[" * 100_000)
@example(b"[" * 1_024 + b"]" * 1_024)
@example(b"9" * 5_000)
def test_decoding_gives_json_or_a_decode_error_and_nothing_else(value: bytes) -> None:
    document, error = attempt(decode, value, DecodeError)
    assert len(error) <= events.ERROR_CHARACTERS_MAX
    if not error:
        # What is let in can be written again, and is the same.
        assert decode(json.dumps(document).encode()) == document


@given(VALUES, KEYS, HEADERS, KNOWN, st.none() | st.just("position"))
def test_every_record_is_accepted_ignored_or_rejected_by_the_contract(
    value: bytes | None,
    key: bytes | None,
    headers: list[tuple[str, bytes | None]],
    known: frozenset[str] | None,
    position: str | None,
) -> None:
    """The rule of the contract, written down again the slow way."""
    document, undecodable = (None, "") if value is None else attempt(decode, value, DecodeError)
    name = document.get("type") if isinstance(document, dict) else None
    try:
        key_text = (key or b"").decode()
    except UnicodeDecodeError:
        key_text = None
    identity = message_id(headers) or position

    outcome = accept(value, key, headers, known, position)
    if value is None:
        assert outcome == Ignored("tombstone")
    elif known is not None and isinstance(name, str) and name not in known:
        assert outcome == Ignored("unknown-type")
    else:
        faults = [
            (not key, Reason.MISSING_KEY),
            (identity is None, Reason.MISSING_MESSAGE_ID),
            (undecodable != "" or key_text is None, Reason.UNDECODABLE),
            (known is not None and not isinstance(name, str), Reason.PERMANENT),
        ]
        reasons = [reason for is_faulty, reason in faults if is_faulty]
        if reasons:
            assert isinstance(outcome, Rejected)
            assert outcome.reason is reasons[0]
            assert 0 < len(outcome.error_message) <= 300
            assert (outcome.key, outcome.message_id) == (key_text or None, identity)
        else:
            assert outcome == Accepted(key_text or "", identity or "", document)


@given(DOCUMENTS)
def test_parsing_gives_an_event_or_a_permanent_error_and_nothing_else(document: object) -> None:
    event, error = attempt(events.parse, document, PermanentError)
    assert len(error) <= events.ERROR_CHARACTERS_MAX
    if not error:
        assert events.parse(events.to_document(event)) == event


# --- money and time ---------------------------------------------------------------------


def placed(lines: list[dict[str, Any]], placed_at: str = "2026-07-01T12:00:00Z") -> dict[str, Any]:
    return {
        "type": "OrderPlaced",
        "order_id": "order-1",
        "customer_id": "customer-7",
        "currency": "EUR",
        "lines": lines,
        "placed_at": placed_at,
    }


@given(LINES)
def test_an_amount_is_exact_plain_and_the_same_however_it_was_written(
    lines: list[dict[str, Any]],
) -> None:
    total = sum((line["quantity"] * Fraction(line["unit_price"]) for line in lines), Fraction())
    if not total:
        return
    event = events.parse(placed(lines))
    assert isinstance(event, events.OrderPlaced)
    assert Fraction(event.amount) == total
    whole, _, decimals = event.amount.partition(".")
    assert whole.isdecimal()
    assert decimals.isdecimal()
    assert len(decimals) == 2 or (len(decimals) > 2 and not decimals.endswith("0"))
    captured = events.PaymentCaptured("order-1", event.amount, event.currency, 0)
    assert events.parse(events.to_document(captured)) == captured


@given(LINES)
def test_an_order_is_written_and_read_back_equal(lines: list[dict[str, Any]]) -> None:
    document = placed([*lines, {"sku": "978-1", "quantity": 1, "unit_price": "1"}])
    event = events.parse(document)
    written = events.to_document(event)
    assert events.parse(decode(json.dumps(written).encode())) == event
    assert written["lines"] == document["lines"]


@given(st.integers(0, events.TIME_MS_MAX))
def test_a_time_is_written_and_read_back_equal(moment_ms: int) -> None:
    text = events.time_text(moment_ms)
    assert len(text) == len("2026-07-01T12:00:00.000Z")
    assert text.endswith("Z")
    assert events.time_ms(text) == moment_ms


DAY_US = 86_400 * 1_000_000


@given(
    st.integers(2 * DAY_US, 2_000_000 * DAY_US),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_a_time_means_the_same_in_every_offset(moment_us: int, offset_minutes: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment_us)
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    utc = aware.astimezone(UTC)
    assert events.time_ms(aware.isoformat()) == events.time_ms(utc.isoformat())
    whole = utc.replace(microsecond=utc.microsecond // 1_000 * 1_000)
    assert events.time_text(events.time_ms(aware.isoformat())) == (
        whole.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


# --- ids --------------------------------------------------------------------------------

SOURCES = st.tuples(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4),
    st.text(max_size=6),
    st.integers(-3, 12),
)


@given(SOURCES, SOURCES)
def test_emitted_ids_are_equal_only_for_equal_sources(
    one: tuple[str, str, int], other: tuple[str, str, int]
) -> None:
    assert (emitted_id(*one) == emitted_id(*other)) == (one == other)


@given(st.text() | st.text(min_size=120, max_size=600))
def test_an_inbox_id_is_bounded_and_final(identity: str) -> None:
    stored = inbox_id(identity)
    assert len(stored.encode()) <= envelope.INBOX_ID_BYTES_MAX
    assert inbox_id(stored) == stored
