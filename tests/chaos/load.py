"""Orders with scripted failures, drawn from a seed, and what must become of each."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.shop import cancelled, placed

#: The policy of billing that the expectations below count with.
ATTEMPTS_MAX = 6
SETTINGS = {
    "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "200",
    "BOOKSTORE_BILLING_BACKOFF_FACTOR": "1.5",
    "BOOKSTORE_BILLING_BACKOFF_MS_MAX": "1000",
    "BOOKSTORE_BILLING_JITTER": "equal",
    "BOOKSTORE_BILLING_ATTEMPTS_MAX": str(ATTEMPTS_MAX),
    "BOOKSTORE_BILLING_DEADLINE_MS": "none",
    # The attempts of each dead letter are counted: only scripted timeouts may happen, and a
    # provider or worker that gets no processor for a second is none.
    "BOOKSTORE_PAYMENT_TIMEOUT_MS": "2500",
}

_DOWN = {"status": 503}
_BUSY = {"status": 429, "retry_after": 1}
# What a call can meet and recover from; each once or more, then the provider is well.
_PASSING: tuple[Mapping[str, Any], ...] = (
    _DOWN,
    _BUSY,
    {"status": 408},
    {"reset": True},
    {"charge_then_reset": True},
    {"garbage": True},
    {"truncated": True},
)
_SLOW: tuple[Mapping[str, Any], ...] = ({"timeout": True}, {"charge_then_timeout": True})
_INVALID_CARD = {"status": 402, "body": "invalid card"}


@dataclass(frozen=True, slots=True)
class Message:
    """A record to be sent, and how often."""

    message_id: str
    document: dict[str, Any]
    copies: int = 1


@dataclass(slots=True)
class Order:
    """One order: what is sent, what the provider does, and what must come of it.

    Attributes:
        messages: in the order in which they are sent, all under the order's key.
        scripts: as the provider takes them.
        charges, refunds: times that money moves.
        events: (type, causation id) on `bookstore.payments`, in order.
        letters: (message id, reason, attempts) on the dead-letter topic, in order.
    """

    order_id: str
    messages: list[Message] = field(default_factory=list)
    scripts: list[dict[str, Any]] = field(default_factory=list)
    charges: int = 0
    refunds: int = 0
    events: list[tuple[str, str]] = field(default_factory=list)
    letters: list[tuple[str, str, int]] = field(default_factory=list)


def draw(seed: int, count: int, prefix: str) -> list[Order]:
    """So many orders; the same for the same arguments."""
    source = random.Random(seed)
    return [_order(source, f"{prefix}-{number}") for number in range(count)]


def healthy(count: int, prefix: str) -> list[Order]:
    """So many orders that nothing happens to; every third is cancelled at once."""
    return [_healthy(f"{prefix}-{number}", number % 3 == 0) for number in range(count)]


def _healthy(order_id: str, is_cancelled: bool) -> Order:
    first, second = f"{order_id}/placed", f"{order_id}/cancelled"
    order = Order(order_id, [Message(first, placed(order_id))], charges=1)
    order.events.append(("PaymentCaptured", first))
    if is_cancelled:
        order.messages.append(Message(second, cancelled(order_id)))
        order.refunds = 1
        order.events.append(("PaymentRefunded", second))
    return order


def _order(source: random.Random, order_id: str) -> Order:
    order = Order(order_id)
    first = f"{order_id}/placed"
    order.messages.append(Message(first, placed(order_id), copies=_copies(source)))
    fate = source.choices(("well", "passing", "invalid", "hopeless"), (40, 45, 8, 7))[0]
    match fate:
        case "passing":
            _script(order, source, "charge", source.randint(1, ATTEMPTS_MAX - 1))
        case "invalid":
            order.scripts.append(_steps(order_id, "charge", [_INVALID_CARD], forever=True))
        case "hopeless":
            order.scripts.append(_steps(order_id, "charge", [_DOWN], forever=True))
    if fate in ("well", "passing"):
        order.charges = 1
        order.events.append(("PaymentCaptured", first))
    else:
        reason = "permanent" if fate == "invalid" else "attempts-exhausted"
        attempts = 1 if fate == "invalid" else ATTEMPTS_MAX
        order.letters.append((first, reason, attempts))
        order.events.append(("PaymentFailed", first))
    if source.random() < 0.06:
        again = f"{order_id}/placed-again"
        order.messages.append(Message(again, placed(order_id), copies=_copies(source)))
        order.letters.append((again, "permanent", 1))
    if source.random() < 0.35:
        _cancel(order, source)
    return order


def _cancel(order: Order, source: random.Random) -> None:
    message_id = f"{order.order_id}/cancelled"
    order.messages.append(Message(message_id, cancelled(order.order_id), copies=_copies(source)))
    if not order.charges:
        return
    fate = source.choices(("well", "passing", "hopeless"), (60, 30, 10))[0]
    if fate == "hopeless":
        order.scripts.append(_steps(order.order_id, "refund", [_DOWN], forever=True))
        order.letters.append((message_id, "attempts-exhausted", ATTEMPTS_MAX))
        return
    if fate == "passing":
        _script(order, source, "refund", source.randint(1, ATTEMPTS_MAX - 1))
    order.refunds = 1
    order.events.append(("PaymentRefunded", message_id))


def _copies(source: random.Random) -> int:
    return source.choices((1, 2, 3), (85, 10, 5))[0]


def _script(order: Order, source: random.Random, operation: str, failures: int) -> None:
    steps = [source.choice(_PASSING) for _ in range(failures - 1)]
    # At most one that takes long.
    steps.append(source.choice((*_PASSING, *_SLOW)))
    source.shuffle(steps)
    order.scripts.append(_steps(order.order_id, operation, steps))


def _steps(
    order_id: str, operation: str, steps: list[Any], *, forever: bool = False
) -> dict[str, Any]:
    return {"order_id": order_id, "operation": operation, "steps": steps, "forever": forever}
