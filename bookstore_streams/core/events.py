"""The bookstore's events: their fields, their rules, and how they look as JSON.

Owns the classes, `parse` (decoded JSON to event), `to_document` (event to JSON values) and
`schemas`. Refuses bytes and headers (see `envelope`), clocks, and any rule about what an
event leads to.

To add an event: write one frozen dataclass whose annotations are field kinds (`Id`,
`Currency`, `TimeMs`, ...), and name it in the `Event` union. Parsing, writing and the JSON
Schema follow from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, Inexact
from typing import Annotated, Any, Final, NamedTuple, cast, get_args, get_type_hints

from bookstore_streams.errors import PermanentError

# An id becomes part of a table key and of a URL, so it has a bound.
ID_CHARACTERS_MAX: Final = 512
REASON_CHARACTERS_MAX: Final = 1_000
LINES_MAX: Final = 1_000
QUANTITY_MAX: Final = 1_000_000
PRICE_DIGITS_MAX: Final = 18
PRICE_DECIMALS_MAX: Final = 6
# Before the point: the 18 digits of a price, and 9 from LINES_MAX x QUANTITY_MAX.
AMOUNT_DIGITS_MAX: Final = 27
# 9999-12-31T23:59:59.999Z, the last instant RFC 3339 can write.
TIME_MS_MAX: Final = 253_402_300_799_999
ERROR_CHARACTERS_MAX: Final = 300
# Short enough that no card number or token is ever copied from a record into an error.
ECHO_CHARACTERS_MAX: Final = 12

# Wide enough for every sum that `parse` can let through (27 digits and 6 decimals); if that
# were ever wrong, it raises instead of rounding money.
_EXACT: Final = Context(prec=40, traps=[Inexact])


class OrderLine(NamedTuple):
    """So many copies of one article at one price.

    A named tuple because it is the object built most often: half the cost of a frozen
    dataclass (0.2 against 0.4 microseconds), and as immutable.
    """

    sku: Id
    quantity: Quantity
    unit_price: Price


@dataclass(frozen=True, slots=True)
class OrderPlaced:
    """A customer ordered; at least one line has a price above zero.

    Raises:
        PermanentError: the total is zero.
    """

    order_id: Id
    customer_id: Id
    currency: Currency
    lines: Lines
    placed_at_ms: TimeMs

    def __post_init__(self) -> None:
        for line in self.lines:
            if line.unit_price:
                return
        raise PermanentError("OrderPlaced.lines: expected a total above zero, found zero")

    @property
    def amount(self) -> str:
        """The exact sum of quantity x unit price, as a decimal string in major units.

        Plain notation, at least two decimals, and no zeros beyond them: 12.5 is "12.50",
        0.105 is "0.105", and one sum has one text however its prices were written.
        """
        total = Decimal(0)
        for line in self.lines:
            total = _EXACT.add(total, _EXACT.multiply(line.unit_price, Decimal(line.quantity)))
        whole, _, decimals = format(total, "f").partition(".")
        return f"{whole}.{decimals.rstrip('0'):0<2}"


@dataclass(frozen=True, slots=True)
class OrderCancelled:
    """The order is called off; what was charged for it is to be refunded."""

    order_id: Id
    reason: Text
    cancelled_at_ms: TimeMs


@dataclass(frozen=True, slots=True)
class PaymentCaptured:
    """The customer was charged the amount."""

    order_id: Id
    amount: Amount
    currency: Currency
    occurred_at_ms: TimeMs


@dataclass(frozen=True, slots=True)
class PaymentRefunded:
    """The customer got the amount back."""

    order_id: Id
    amount: Amount
    currency: Currency
    occurred_at_ms: TimeMs


@dataclass(frozen=True, slots=True)
class PaymentFailed:
    """Charging the amount was given up, for the reason told."""

    order_id: Id
    amount: Amount
    currency: Currency
    reason: Text
    occurred_at_ms: TimeMs


Event = OrderPlaced | OrderCancelled | PaymentCaptured | PaymentRefunded | PaymentFailed


def parse(document: object) -> Event:
    """The event that a decoded JSON document stands for; unknown fields are ignored.

    Raises:
        PermanentError: the document breaks the schema of its `type`, or that is unknown.
            The message (at most `ERROR_CHARACTERS_MAX`) names the field, what was expected
            and what was found; long or nested values are described, not copied.
    """
    if type(document) is not dict:
        raise _permanent(_FaultError("an object", document))
    name = document.get("type", _ABSENT)
    if type(name) is not str:
        raise _permanent(_FaultError("a string", name, "type"))
    shape = _SHAPES.get(name)
    if shape is None:
        raise _permanent(_FaultError("one of " + ", ".join(_SHAPES), name, "type"))
    try:
        event: Event = shape.read(document)
    except _FaultError as fault:
        fault.path = f"{name}{fault.path}"
        raise _permanent(fault) from None
    return event


def to_document(event: Event) -> dict[str, object]:
    """The JSON values of an event; `parse` reads them back as an equal event.

    Times come out as RFC 3339 UTC with milliseconds and `Z`.
    """
    name = type(event).__name__
    return {"type": name, **_SHAPES[name].write(event)}


def known_types(*kinds: type[Event]) -> frozenset[str]:
    """The `type` texts of these event classes; without any, of all that `parse` knows."""
    return frozenset(kind.__name__ for kind in kinds or get_args(Event))


def schemas() -> dict[str, dict[str, object]]:
    """JSON Schema (draft 2020-12) of every event: type -> schema.

    Says what `parse` accepts, but for three rules that a schema cannot state: the total of
    an order is above zero, a time exists and lies between 1970 and 9999, and 1.0 is no
    integer.
    """
    return {name: _event_schema(name, shape) for name, shape in _SHAPES.items()}


def time_ms(text: str) -> int:
    """Epoch milliseconds of an RFC 3339 time with an offset, from 1970 to 9999.

    What is finer than a millisecond is cut off.

    Raises:
        ValueError: `text` is no such time.
    """
    if _is_time(text) is None:
        raise ValueError(text)
    moment_ms = (datetime.fromisoformat(text.upper()) - _EPOCH) // _MILLISECOND
    if not 0 <= moment_ms <= TIME_MS_MAX:
        raise ValueError(text)
    return moment_ms


def time_text(moment_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds and `Z`; `moment_ms` from 0 to `TIME_MS_MAX`."""
    moment = _EPOCH + timedelta(milliseconds=moment_ms)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def describe(value: object) -> str:
    """What a JSON value is, in a few words, for an error message.

    Short values are shown; longer ones are described by kind and size only, because the
    text ends up in headers, logs and web pages, and the record may hold secrets.
    """
    match value:
        case _Absent():
            return "nothing"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            if len(value) <= ECHO_CHARACTERS_MAX and value.isprintable():
                return f'"{value}"'
            return f"a string of {len(value)} characters"
        case int():
            # By its range first: writing out a huge int is slow, or refused by Python.
            if abs(value) < 10**ECHO_CHARACTERS_MAX:
                return str(value)
            return f"an integer of more than {ECHO_CHARACTERS_MAX} digits"
        case float():
            return f"the number {value:.6g}"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)} fields"
        case _:
            return f"a {type(value).__name__}"


def _permanent(fault: _FaultError) -> PermanentError:
    text = f"expected {fault.expected}, found {describe(fault.value)}"
    return PermanentError((f"{fault.path}: {text}" if fault.path else text)[:ERROR_CHARACTERS_MAX])


# --- Field kinds: how one field looks as JSON -------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

_CURRENCY_PATTERN: Final = "[A-Z]{3}"
_PRICE_PATTERN: Final = rf"[0-9]{{1,{PRICE_DIGITS_MAX}}}(?:\.[0-9]{{1,{PRICE_DECIMALS_MAX}}})?"
_AMOUNT_PATTERN: Final = rf"[0-9]{{1,{AMOUNT_DIGITS_MAX}}}(?:\.[0-9]{{1,{PRICE_DECIMALS_MAX}}})?"
# Stricter than datetime.fromisoformat, which also takes week dates, basic formats and (in
# some versions of Python) hour 24. A leap second (:60) is refused: it has no epoch ms.
_TIME_PATTERN: Final = (
    "[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(?:\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_is_currency: Final = re.compile(_CURRENCY_PATTERN).fullmatch
_is_price: Final = re.compile(_PRICE_PATTERN).fullmatch
_is_amount: Final = re.compile(_AMOUNT_PATTERN).fullmatch
_is_time: Final = re.compile(_TIME_PATTERN).fullmatch


class _Absent:
    """Stands for a field that the document does not have."""


_ABSENT: Final = _Absent()


class _FaultError(Exception):
    """A value that breaks a rule, on its way up to where its whole path is known."""

    def __init__(self, expected: str, value: object, path: str = "") -> None:
        self.expected = expected
        self.value = value
        self.path = path
        super().__init__(expected)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Reader (raises `_FaultError`), writer and schema of one kind of field."""

    read: Callable[[object], Any]
    write: Callable[[Any], object]
    schema: Mapping[str, object]
    unit: str = ""  # what the attribute's name ends in and the JSON name does not


def _as_is(value: object) -> object:
    return value


def _text(characters_max: int) -> _Kind:
    def read(value: object) -> str:
        if type(value) is str and 0 < len(value) <= characters_max:
            return value
        raise _FaultError(f"a string of 1 to {characters_max} characters", value)

    schema = {"type": "string", "minLength": 1, "maxLength": characters_max}
    return _Kind(read, _as_is, schema)


def _read_currency(value: object) -> str:
    if type(value) is str and _is_currency(value):
        return value
    raise _FaultError("three letters A-Z", value)


def _read_quantity(value: object) -> int:
    # `type is int`, not isinstance: JSON's true is no quantity, nor is 1.0.
    if type(value) is int and 1 <= value <= QUANTITY_MAX:
        return value
    raise _FaultError(f"an integer from 1 to {QUANTITY_MAX}", value)


def _read_price(value: object) -> Decimal:
    # The point is the one character that a price may have beyond its digits.
    if type(value) is str and len(value) <= PRICE_DIGITS_MAX + 1 and _is_price(value):
        return Decimal(value)
    expected = (
        f'a decimal string such as "12.50", not negative, of at most {PRICE_DIGITS_MAX} digits'
        f" with {PRICE_DECIMALS_MAX} decimals"
    )
    raise _FaultError(expected, value)


def _write_price(value: Decimal) -> str:
    return format(value, "f")


def _read_amount(value: object) -> str:
    if type(value) is str and _is_amount(value):
        return value
    raise _FaultError('a decimal string such as "12.50", not negative', value)


def _read_time(value: object) -> int:
    if type(value) is str:
        try:
            return time_ms(value)
        except ValueError:
            pass  # told below, in the words of every other fault
    raise _FaultError('an RFC 3339 time with offset such as "2026-07-01T12:00:00Z"', value)


def _read_lines(value: object) -> tuple[OrderLine, ...]:
    if type(value) is not list or not 0 < len(value) <= LINES_MAX:
        raise _FaultError(f"a list of 1 to {LINES_MAX} lines", value)
    lines: list[OrderLine] = []
    try:
        for line in value:
            lines.append(_LINE.read(line))
    except _FaultError as fault:
        fault.path = f"[{len(lines)}]{fault.path}"
        raise
    return tuple(lines)


def _write_lines(lines: tuple[OrderLine, ...]) -> list[dict[str, object]]:
    return [_LINE.write(line) for line in lines]


# --- Shapes: a class taken apart once, at import ----------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """Reads and writes one class; a loop over a tuple, since it runs for every message."""

    kind: type[Any]
    readers: tuple[tuple[str, Callable[[object], Any]], ...]  # JSON name, reader
    writers: tuple[tuple[str, str, Callable[[Any], object]], ...]  # JSON name, attribute, writer
    schema: Mapping[str, object]

    def read(self, document: object) -> Any:
        if type(document) is not dict:
            raise _FaultError("an object", document)
        values: list[Any] = []
        name = ""
        try:
            for name, read in self.readers:
                values.append(read(document.get(name, _ABSENT)))
        except _FaultError as fault:
            fault.path = f".{name}{fault.path}"
            raise
        return self.kind(*values)

    def write(self, value: object) -> dict[str, object]:
        return {name: write(getattr(value, attribute)) for name, attribute, write in self.writers}


def _shape(kind: type[Any]) -> _Shape:
    looks: list[tuple[str, str, _Kind]] = []  # JSON name, attribute, kind
    for attribute, hint in get_type_hints(kind, include_extras=True).items():
        look = next(each for each in get_args(hint) if isinstance(each, _Kind))
        looks.append((attribute.removesuffix(look.unit), attribute, look))
    return _Shape(
        kind=kind,
        readers=tuple((name, look.read) for name, _, look in looks),
        writers=tuple((name, attribute, look.write) for name, attribute, look in looks),
        schema={
            "type": "object",
            "required": [name for name, _, _ in looks],
            "properties": {name: look.schema for name, _, look in looks},
        },
    )


def _event_schema(name: str, shape: _Shape) -> dict[str, object]:
    summary, _, _ = (shape.kind.__doc__ or "").partition("\n")
    required = cast("list[str]", shape.schema["required"])
    properties = cast("dict[str, object]", shape.schema["properties"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "description": summary,
        "type": "object",
        "required": ["type", *required],
        "properties": {"type": {"const": name}, **properties},
    }


Id = Annotated[str, _text(ID_CHARACTERS_MAX)]
Text = Annotated[str, _text(REASON_CHARACTERS_MAX)]
Currency = Annotated[
    str, _Kind(_read_currency, _as_is, {"type": "string", "pattern": f"^{_CURRENCY_PATTERN}$"})
]
Quantity = Annotated[
    int, _Kind(_read_quantity, _as_is, {"type": "integer", "minimum": 1, "maximum": QUANTITY_MAX})
]
Price = Annotated[
    Decimal,
    _Kind(
        _read_price,
        _write_price,
        {"type": "string", "pattern": f"^{_PRICE_PATTERN}$", "maxLength": PRICE_DIGITS_MAX + 1},
    ),
]
Amount = Annotated[
    str, _Kind(_read_amount, _as_is, {"type": "string", "pattern": f"^{_AMOUNT_PATTERN}$"})
]
TimeMs = Annotated[
    int,
    _Kind(
        _read_time,
        time_text,
        {"type": "string", "format": "date-time", "pattern": f"^{_TIME_PATTERN}$"},
        unit="_ms",
    ),
]

_LINE: Final = _shape(OrderLine)

Lines = Annotated[
    tuple[OrderLine, ...],
    _Kind(
        _read_lines,
        _write_lines,
        {"type": "array", "minItems": 1, "maxItems": LINES_MAX, "items": _LINE.schema},
    ),
]

_SHAPES: Final = {kind.__name__: _shape(kind) for kind in get_args(Event)}
