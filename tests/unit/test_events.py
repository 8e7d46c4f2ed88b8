"""Which documents are events, what a refusal says, and what money and time come out as."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest

from bookstore_streams.core import events
from bookstore_streams.core.events import (
    OrderCancelled,
    OrderLine,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
    parse,
    to_document,
)
from bookstore_streams.errors import PermanentError

ROOT = Path(__file__).resolve().parents[2]

PLACED: dict[str, Any] = {
    "type": "OrderPlaced",
    "order_id": "order-1",
    "customer_id": "customer-7",
    "currency": "EUR",
    "lines": [
        {"sku": "978-1", "quantity": 2, "unit_price": "12.50"},
        {"sku": "978-2", "quantity": 1, "unit_price": "13.49"},
    ],
    "placed_at": "2026-07-01T12:00:00Z",
}
PLACED_AT_MS = 1_782_907_200_000


def placed(**changes: Any) -> dict[str, Any]:
    return {**PLACED, **changes}


def with_line(**changes: Any) -> dict[str, Any]:
    line = {"sku": "978-1", "quantity": 1, "unit_price": "1.00", **changes}
    return placed(lines=[PLACED["lines"][0], line])


def order(*lines: tuple[int, str]) -> OrderPlaced:
    return OrderPlaced(
        order_id="order-1",
        customer_id="customer-7",
        currency="EUR",
        lines=tuple(OrderLine("978-1", quantity, Decimal(price)) for quantity, price in lines),
        placed_at_ms=PLACED_AT_MS,
    )


def refusal(document: object) -> str:
    with pytest.raises(PermanentError) as caught:
        parse(document)
    return str(caught.value)


def test_a_placed_order_is_read_with_exact_prices_and_epoch_milliseconds() -> None:
    assert parse(PLACED) == OrderPlaced(
        order_id="order-1",
        customer_id="customer-7",
        currency="EUR",
        lines=(
            OrderLine("978-1", 2, Decimal("12.50")),
            OrderLine("978-2", 1, Decimal("13.49")),
        ),
        placed_at_ms=PLACED_AT_MS,
    )


def test_a_cancelled_order_is_read() -> None:
    document = {
        "type": "OrderCancelled",
        "order_id": "order-1",
        "reason": "changed-mind",
        "cancelled_at": "2026-07-01T12:00:00Z",
    }
    assert parse(document) == OrderCancelled("order-1", "changed-mind", PLACED_AT_MS)


def test_unknown_fields_are_ignored_at_every_level() -> None:
    document = copy.deepcopy(PLACED)
    document["gift"] = {"wrap": True}
    document["lines"][0]["colour"] = "red"
    assert parse(document) == parse(PLACED)


def test_reading_leaves_the_document_as_it_was() -> None:
    document = copy.deepcopy(PLACED)
    parse(document)
    assert document == PLACED


def test_events_cannot_be_changed_and_can_be_pickled() -> None:
    event = parse(PLACED)
    assert isinstance(event, OrderPlaced)
    with pytest.raises(AttributeError):
        event.order_id = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        event.lines[0].quantity = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(event)) == event


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "expected an object, found null"),
        ([], "expected an object, found a list of 0"),
        ("OrderPlaced", 'expected an object, found "OrderPlaced"'),
        ({}, "type: expected a string, found nothing"),
        ({"type": None}, "type: expected a string, found null"),
        ({"type": 7}, "type: expected a string, found 7"),
        ({"type": ["OrderPlaced"]}, "type: expected a string, found a list of 1"),
        (
            {"type": "orderplaced"},
            "type: expected one of OrderPlaced, OrderCancelled, PaymentCaptured,"
            ' PaymentRefunded, PaymentFailed, found "orderplaced"',
        ),
    ],
)
def test_what_is_no_typed_object_is_refused(document: object, message: str) -> None:
    assert refusal(document) == message


@pytest.mark.parametrize("field", [name for name in PLACED if name != "type"])
@pytest.mark.parametrize("found", ["nothing", "null"])
def test_every_field_is_required_and_null_is_no_value(field: str, found: str) -> None:
    document = placed(**{field: None})
    if found == "nothing":
        del document[field]
    message = refusal(document)
    assert message.startswith(f"OrderPlaced.{field}: expected ")
    assert message.endswith(f", found {found}")


@pytest.mark.parametrize("field", ["sku", "quantity", "unit_price"])
def test_every_field_of_a_line_is_required_and_named_with_its_index(field: str) -> None:
    document = with_line()
    del document["lines"][1][field]
    message = refusal(document)
    assert message.startswith(f"OrderPlaced.lines[1].{field}: expected ")
    assert message.endswith(", found nothing")


@pytest.mark.parametrize("field", ["order_id", "customer_id"])
@pytest.mark.parametrize("value", ["", "x" * 513, 1, True, ["a"], {"a": 1}])
def test_an_id_is_a_string_of_1_to_512_characters(field: str, value: object) -> None:
    message = refusal(placed(**{field: value}))
    assert message.startswith(f"OrderPlaced.{field}: expected a string of 1 to 512 characters")


def test_an_id_may_have_512_characters_of_any_script() -> None:
    event = parse(placed(order_id="書" * 512))
    assert event.order_id == "書" * 512


@pytest.mark.parametrize("value", ["", "eur", "EU", "EURO", "EU1", "ÄÖÜ", "EUR\n", "ＥＵＲ", 978])
def test_a_currency_is_three_capital_ascii_letters(value: object) -> None:
    message = refusal(placed(currency=value))
    assert message.startswith("OrderPlaced.currency: expected three letters A-Z, found ")


@pytest.mark.parametrize("value", [[], {}, "lines", (), 3, [PLACED["lines"][0]] * 1_001])
def test_lines_are_a_list_of_1_to_1000(value: object) -> None:
    message = refusal(placed(lines=value))
    assert message.startswith("OrderPlaced.lines: expected a list of 1 to 1000 lines, found ")


def test_an_order_may_have_1000_lines() -> None:
    event = parse(placed(lines=[PLACED["lines"][0]] * 1_000))
    assert isinstance(event, OrderPlaced)
    assert event.amount == "25000.00"


@pytest.mark.parametrize("value", [None, "978-1", [], 3])
def test_a_line_is_an_object(value: object) -> None:
    message = refusal(placed(lines=[PLACED["lines"][0], value]))
    assert message.startswith("OrderPlaced.lines[1]: expected an object, found ")


@pytest.mark.parametrize(
    "value", [0, -1, 1.0, 1.5, True, False, "1", None, 1_000_001, 10**30, float("inf"), [1]]
)
def test_a_quantity_is_an_integer_from_1_to_a_million(value: object) -> None:
    message = refusal(with_line(quantity=value))
    assert message.startswith(
        "OrderPlaced.lines[1].quantity: expected an integer from 1 to 1000000, found "
    )


@pytest.mark.parametrize(
    "value",
    [
        "",
        " 1.00",
        "1.00\n",
        "-1.00",
        "-0",
        "+1.00",
        "1e2",
        "1E-2",
        "NaN",
        "sNaN",
        "Infinity",
        "1,00",
        "1_000",
        ".5",
        "5.",
        "1.2.3",
        "0x10",
        "١٢",  # digits to int() and to a pattern's \d
        "1.1234567",
        "1" * 19,
        "1" * 17 + ".12",
        pytest.param("1" * 1_000_000, id="a million digits"),
        12.5,
        12,
        True,
        None,
        ["1.00"],
    ],
)
def test_a_price_is_a_plain_decimal_string_of_at_most_18_digits(value: object) -> None:
    message = refusal(with_line(unit_price=value))
    assert message.startswith("OrderPlaced.lines[1].unit_price: expected a decimal string")


@pytest.mark.parametrize(
    "value", ["0", "0.00", "1", "12.5", "0.000001", "9" * 18, "9" * 12 + ".999999"]
)
def test_a_price_is_kept_as_it_was_written(value: str) -> None:
    event = parse(with_line(unit_price=value))
    assert isinstance(event, OrderPlaced)
    assert str(to_document(event)["lines"][1]["unit_price"]) == value  # type: ignore[index]


@pytest.mark.parametrize("price", ["0", "0.00", "0.000000"])
def test_an_order_for_nothing_is_refused(price: str) -> None:
    document = placed(lines=[{"sku": "978-1", "quantity": 3, "unit_price": price}])
    assert refusal(document) == "OrderPlaced.lines: expected a total above zero, found zero"


def test_a_free_line_beside_a_paid_one_is_fine() -> None:
    event = parse(with_line(unit_price="0.00"))
    assert isinstance(event, OrderPlaced)
    assert event.amount == "25.00"


@pytest.mark.parametrize(
    ("lines", "amount"),
    [
        ([(1, "12.50")], "12.50"),
        ([(1, "12.5")], "12.50"),
        ([(1, "12")], "12.00"),
        ([(1, "0.105")], "0.105"),
        ([(2, "0.0525")], "0.105"),
        ([(1, "12.500000")], "12.50"),
        ([(1, "0.000001")], "0.000001"),
        ([(3, "0.1"), (1, "0.00")], "0.30"),
        ([(10, "100")], "1000.00"),
        ([(2, "12.50"), (1, "13.49")], "38.49"),
        ([(1, "007.10")], "7.10"),
    ],
)
def test_an_amount_is_the_exact_sum_in_plain_notation(
    lines: list[tuple[int, str]], amount: str
) -> None:
    assert order(*lines).amount == amount


def test_the_largest_order_that_can_be_read_has_an_exact_amount() -> None:
    lines = [(1_000_000, "9" * 18)] * 999 + [(1, "0.000001")]
    expected = 999 * 1_000_000 * int("9" * 18)
    event = order(*lines)
    assert event.amount == f"{expected}.000001"
    captured = PaymentCaptured("order-1", event.amount, "EUR", PLACED_AT_MS)
    assert parse(to_document(captured)) == captured


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-07-01T12:00:00Z", PLACED_AT_MS),
        ("2026-07-01T12:00:00+00:00", PLACED_AT_MS),
        ("2026-07-01T12:00:00-00:00", PLACED_AT_MS),
        ("2026-07-01t12:00:00z", PLACED_AT_MS),
        ("2026-07-01 12:00:00Z", PLACED_AT_MS),
        ("2026-07-01T14:00:00+02:00", PLACED_AT_MS),
        ("2026-07-01T06:30:00-05:30", PLACED_AT_MS),
        ("2026-07-01T12:00:00.5Z", PLACED_AT_MS + 500),
        ("2026-07-01T12:00:00.123Z", PLACED_AT_MS + 123),
        ("2026-07-01T12:00:00.123999Z", PLACED_AT_MS + 123),
        ("2026-07-01T12:00:00.123456789Z", PLACED_AT_MS + 123),
        ("1970-01-01T00:00:00Z", 0),
        ("2028-02-29T00:00:00Z", 1_835_395_200_000),
        ("9999-12-31T23:59:59.999Z", events.TIME_MS_MAX),
    ],
)
def test_a_time_is_rfc_3339_with_any_offset(text: str, ms: int) -> None:
    event = parse(placed(placed_at=text))
    assert isinstance(event, OrderPlaced)
    assert event.placed_at_ms == ms


@pytest.mark.parametrize(
    "value",
    [
        "",
        "yesterday",
        "2026-07-01",
        "2026-07-01T12:00:00",
        "2026-07-01T12:00Z",
        "2026-07-01T12:00:00,5Z",
        "2026-07-01T12:00:00.Z",
        "2026-07-01T12:00:00+0200",
        "2026-07-01T12:00:00+02",
        "2026-07-01T12:00:00+24:00",
        "2026-07-01T12:00:00+02:60",
        "2026-07-01T12:00:00 +02:00",
        "2026-07-01T24:00:00Z",
        "2026-07-01T23:59:60Z",
        "2026-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-00T00:00:00Z",
        "20260701T120000Z",
        "2026-W27-3T12:00:00Z",
        "2026-07-01T12:00:00Z\n",
        "1969-12-31T23:59:59.999Z",
        "0001-01-01T00:00:00+23:59",
        "0000-01-01T00:00:00Z",
        "9999-12-31T23:59:59-00:01",
        "12026-07-01T12:00:00Z",
        "٢٠٢٦-07-01T12:00:00Z",
        PLACED_AT_MS,
        None,
    ],
)
def test_what_is_no_rfc_3339_time_with_offset_is_refused(value: object) -> None:
    message = refusal(placed(placed_at=value))
    assert message.startswith("OrderPlaced.placed_at: expected an RFC 3339 time with offset")


def test_a_refusal_describes_long_values_and_never_copies_them() -> None:
    secret = "4111111111111111"
    for value in (
        secret,
        int(secret),
        [secret],
        {secret: secret},
        float(secret),
        "sk_live_" + secret,
    ):
        for document in (
            placed(order_id=[value]),
            placed(currency=value),
            with_line(unit_price=value) if isinstance(value, float) else placed(lines=value),
            {"type": value},
        ):
            message = refusal(document)
            assert secret not in message
            assert len(message) <= 300
    assert refusal(placed(currency="EURO")).endswith('found "EURO"')


@pytest.mark.parametrize("value", ["\n", "a\x00b", "\x1b[31m", "\u2028", "\ud800"])
def test_a_refusal_never_holds_characters_that_break_a_line_or_a_header(value: str) -> None:
    message = refusal(placed(currency=value))
    assert message.isprintable()
    message.encode()


def test_a_refusal_of_a_huge_number_is_quick_and_short() -> None:
    # Python refuses to write out an int of more than 4,300 digits.
    assert refusal(with_line(quantity=10**5_000)).endswith("an integer of more than 12 digits")


@pytest.mark.parametrize(
    ("event", "document"),
    [
        (
            PaymentCaptured("order-1", "38.49", "EUR", PLACED_AT_MS + 1_250),
            {
                "type": "PaymentCaptured",
                "order_id": "order-1",
                "amount": "38.49",
                "currency": "EUR",
                "occurred_at": "2026-07-01T12:00:01.250Z",
            },
        ),
        (
            PaymentRefunded("order-1", "38.49", "EUR", PLACED_AT_MS),
            {
                "type": "PaymentRefunded",
                "order_id": "order-1",
                "amount": "38.49",
                "currency": "EUR",
                "occurred_at": "2026-07-01T12:00:00.000Z",
            },
        ),
        (
            PaymentFailed("order-1", "38.49", "EUR", "deadline-passed", PLACED_AT_MS),
            {
                "type": "PaymentFailed",
                "order_id": "order-1",
                "amount": "38.49",
                "currency": "EUR",
                "reason": "deadline-passed",
                "occurred_at": "2026-07-01T12:00:00.000Z",
            },
        ),
    ],
)
def test_an_emitted_event_is_written_by_the_contract_and_read_back(
    event: events.Event, document: dict[str, object]
) -> None:
    assert to_document(event) == document
    assert parse(document) == event


@pytest.mark.parametrize("value", ["", "-1.00", "1e2", "NaN", 38.49, None, "1" * 28])
def test_a_payment_amount_is_a_plain_decimal_string(value: object) -> None:
    document = {
        "type": "PaymentCaptured",
        "order_id": "order-1",
        "amount": value,
        "currency": "EUR",
        "occurred_at": "2026-07-01T12:00:00Z",
    }
    assert refusal(document).startswith("PaymentCaptured.amount: expected a decimal string")


def test_known_types_are_those_that_can_be_read_or_those_asked_for() -> None:
    assert events.known_types() == {kind.__name__ for kind in get_args(events.Event)}
    assert events.known_types(OrderPlaced, OrderCancelled) == {"OrderPlaced", "OrderCancelled"}


def test_every_example_of_the_protocol_document_is_an_event_and_every_event_has_one() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    examples = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    assert {example["type"] for example in examples} == events.known_types()
    for example in examples:
        assert to_document(parse(example)) == example


def test_the_schema_files_are_those_of_the_classes() -> None:
    check = [sys.executable, str(ROOT / "scripts" / "generate-schemas"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_patterns_of_a_schema_mean_the_same_in_every_dialect() -> None:
    # \d takes Arabic digits in Python and none in JavaScript.
    for schema in events.schemas().values():
        for pattern in re.findall(r'"pattern": "(.*?)"', json.dumps(schema)):
            assert not re.search(r"\\[dwsDWS]", pattern)
