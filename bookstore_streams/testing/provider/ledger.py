"""What was asked of the provider and what it booked: the facts that tests are judged by.

It owns idempotency (one booking per key), the totals per order, and the JSON-lines file by
which a restarted provider still knows them. It refuses to decide what a call deserves: that
is the script's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import orjson

from bookstore_streams.testing.provider.script import Operation

# ISO 4217, the active codes that stand for money (not funds, metals or tests).
_CODES: Final = (
    "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP"
    " BYN BZD CAD CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP"
    " GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR"
    " KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK"
    " MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR"
    " SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS"
    " UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG"
)
CURRENCIES: Final = frozenset(_CODES.split())

# Far more than any price needs, few enough that sums stay exact.
_AMOUNT_CHARS_MAX: Final = 40
_EXACT: Final = Context(prec=4 * _AMOUNT_CHARS_MAX)

Verdict = Literal["booked", "replayed", "rejected:422"]


@dataclass(slots=True)
class Call:
    """One call of the money API, as it arrived and as it ended.

    Attributes:
        seq: order of arrival, from 1, without gaps.
        at_ms: when it arrived, in Unix milliseconds.
        order_id: empty where the body could not be read; so are key, amount and currency.
        result: what the caller saw: `booked`, `replayed`, `failed:<status>`,
            `rejected:<status>`, `timeout`, `reset`, `garbage`, `truncated`; `pending` until then.
        booked: whether this call moved money, seen or not.
        done_ms: when `result` was settled, in Unix milliseconds; None while it is pending.
    """

    seq: int
    at_ms: int
    operation: Operation
    order_id: str = ""
    key: str = ""
    amount: str = ""
    currency: str = ""
    result: str = "pending"
    booked: bool = False
    done_ms: int | None = None


@dataclass(slots=True)
class Account:
    """What an order was charged and refunded, in money and in number of bookings."""

    charged: Decimal = Decimal(0)
    refunded: Decimal = Decimal(0)
    charges: int = 0
    refunds: int = 0
    currency: str = ""
    calls: int = 0

    def as_json(self) -> dict[str, str | int]:
        """The account as `GET /_ledger` shows it; money is a decimal string."""
        return {
            "charged": format(self.charged, "f"),
            "charges": self.charges,
            "refunded": format(self.refunded, "f"),
            "refunds": self.refunds,
            "currency": self.currency,
            "calls": self.calls,
        }


class Ledger:
    """Every call in order of arrival, and the account of every order.

    Args:
        file: JSON lines, one per finished call; read first, then appended to. Each line is
            with the operating system before the caller hears of it. None keeps all in memory.

    Raises:
        ValueError: a line of the file is no call; the message names it.
        OSError: the file cannot be read or written.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.calls: list[Call] = []
        self._accounts: dict[str, Account] = {}
        self._bookings: dict[str, Call] = {}
        self._file: BinaryIO | None = None
        if file is not None:
            # Unbuffered and appended: one line is one write, so a kill tears at most the last.
            self._file = file.open("ab", buffering=0)
            try:
                self._load(file)
            except BaseException:
                self._file.close()
                raise

    def account(self, order_id: str) -> Account:
        """The account of an order; of one never heard of, an empty account."""
        return self._accounts.get(order_id) or Account()

    @property
    def accounts(self) -> Mapping[str, Account]:
        """Every order that a finished call named."""
        return self._accounts

    def begin(self, operation: Operation, at_ms: int) -> Call:
        """Notes the arrival of a call, which stays pending until `finish`."""
        call = Call(self.calls[-1].seq + 1 if self.calls else 1, at_ms, operation)
        self.calls.append(call)
        return call

    def booking(self, key: str) -> Call | None:
        """The call that moved money under this idempotency key, if one did."""
        return self._bookings.get(key)

    def verdict(self, call: Call) -> Verdict:
        """What becomes of a call that is to be booked: at most one booking per key."""
        first = self._bookings.get(call.key)
        if first is None:
            return "rejected:422" if refusal(call) else "booked"
        return "replayed" if _is_same(first, call) else "rejected:422"

    def finish(self, call: Call, result: str, booked: bool, now_ms: int) -> None:
        """Writes the call's end to the file, then to the accounts."""
        call.result, call.booked, call.done_ms = result, booked, now_ms
        if self._file is not None:
            self._file.write(orjson.dumps(call, option=orjson.OPT_APPEND_NEWLINE))
        self._enter(call)

    def clear(self) -> None:
        """Forgets everything, the file's content too."""
        self.calls.clear()
        self._accounts.clear()
        self._bookings.clear()
        if self._file is not None:
            self._file.truncate(0)

    def close(self) -> None:
        """Closes the file; nothing may be finished afterwards."""
        if self._file is not None:
            self._file.close()

    def _enter(self, call: Call) -> None:
        if not call.order_id:
            return
        account = self._accounts.setdefault(call.order_id, Account())
        account.calls += 1
        if not call.booked:
            return
        self._bookings[call.key] = call
        account.currency = call.currency
        if call.operation == "charge":
            account.charges += 1
            account.charged = _EXACT.add(account.charged, Decimal(call.amount))
        else:
            account.refunds += 1
            account.refunded = _EXACT.add(account.refunded, Decimal(call.amount))

    def _load(self, file: Path) -> None:
        lines = file.read_bytes().split(b"\n")
        torn = lines.pop()
        for number, line in enumerate(lines, start=1):
            try:
                call = Call(**orjson.loads(line))
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{file}: line {number} is no call of a ledger: {error}"
                ) from error
            self.calls.append(call)
            self._enter(call)
        # Lines stand in order of their end; a call that took long stands late.
        self.calls.sort(key=lambda call: call.seq)
        if torn and self._file is not None:
            self._file.truncate(file.stat().st_size - len(torn))


def read_request(call: Call, body: bytes, key: str | None) -> str | None:
    """Copies the request into the call; returns what is wrong with it, None if nothing.

    Wrong here means that it is no request at all (HTTP 400); `refusal` judges its content.
    """
    try:
        request: Any = orjson.loads(body)
    except ValueError:
        return "the body is no JSON"
    if not isinstance(request, dict):
        return "the body is no object"
    for name in ("order_id", "amount", "currency"):
        if not isinstance(request.get(name), str) or not request[name]:
            return f"{name} must be a text and not empty"
    call.order_id, call.amount = request["order_id"], request["amount"]
    call.currency = request["currency"]
    if not key:
        return "the header Idempotency-Key is missing"
    call.key = key
    return None


def refusal(call: Call) -> str | None:
    """Why no bank would take this, None if one would (HTTP 422)."""
    if call.currency not in CURRENCIES:
        return f"invalid currency: {_shown(call.currency)}"
    amount = call.amount
    if len(amount) > _AMOUNT_CHARS_MAX or not re.fullmatch(r"[0-9]+(\.[0-9]+)?", amount):
        return f"invalid amount: {_shown(amount)} is no decimal"
    if not Decimal(amount):
        return f"invalid amount: {amount} is not above zero"
    return None


def _is_same(first: Call, call: Call) -> bool:
    return (first.operation, first.order_id, first.amount, first.currency) == (
        call.operation,
        call.order_id,
        call.amount,
        call.currency,
    )


def _shown(text: str) -> str:
    return text if len(text) <= _AMOUNT_CHARS_MAX else text[:_AMOUNT_CHARS_MAX] + "..."
