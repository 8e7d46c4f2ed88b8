"""Billing: charges an order when it is placed, refunds it when it is cancelled, each once."""

from __future__ import annotations

from typing import Any

from bookstore_streams import app
from bookstore_streams.core.effects import DeadLetter
from bookstore_streams.core.events import (
    OrderCancelled,
    OrderPlaced,
    PaymentCaptured,
    PaymentFailed,
    PaymentRefunded,
)
from bookstore_streams.engine.unit_of_work import Context
from bookstore_streams.errors import PermanentError
from bookstore_streams.providers.payment import PaymentProvider
from tables.payments import payments

ORDERS = "bookstore.orders"
PAYMENTS = "bookstore.payments"

provider = PaymentProvider(
    app.settings.payment.url,
    app.settings.payment.timeout_ms,
    app.settings.payment.connections_max,
)
app.close_at_end(provider.close)


async def on_dead_letter(
    event: OrderPlaced | OrderCancelled, letter: DeadLetter, context: Context
) -> None:
    """Tell once that an order could not be charged."""
    if not isinstance(event, OrderPlaced):
        return
    if event.order_id in payments:
        return  # another placement of a known order, or a replay: it was told already
    payments[event.order_id] = {
        "status": "failed",
        "amount": event.amount,
        "currency": event.currency,
        "message_id": context.message_id,
        "reason": letter.reason,
    }
    context.emit(
        PAYMENTS,
        PaymentFailed(event.order_id, event.amount, event.currency, letter.reason, context.now_ms),
    )


def _deadline_from(event: OrderPlaced | OrderCancelled) -> int | None:
    """A payment is due within some time of the placement; a refund whenever it succeeds."""
    return event.placed_at_ms if isinstance(event, OrderPlaced) else None


@app.consume(
    ORDERS,
    name="billing",
    events=(OrderPlaced, OrderCancelled),
    emits=(PAYMENTS,),
    on_dead_letter=on_dead_letter,
    deadline_from=_deadline_from,
)
async def billing(event: OrderPlaced | OrderCancelled, context: Context) -> None:
    """Charges placed orders and refunds cancelled ones."""
    match event:
        case OrderPlaced():
            await _charge(event, context)
        case OrderCancelled():
            await _refund(event, context)


async def _charge(order: OrderPlaced, context: Context) -> None:
    known: dict[str, Any] | None = payments.get(order.order_id)
    if known is not None and not _is_retried(known, context):
        raise PermanentError(
            f"order {order.order_id} was placed before, by message {known['message_id']}"
        )
    amount, currency = order.amount, order.currency
    await provider.charge(order.order_id, amount, currency, before_call=context.ensure_lease)
    payments[order.order_id] = {
        "status": "captured",
        "amount": amount,
        "currency": currency,
        "message_id": context.message_id,
    }
    context.emit(PAYMENTS, PaymentCaptured(order.order_id, amount, currency, context.now_ms))


def _is_retried(known: dict[str, Any], context: Context) -> bool:
    """Whether this is the very placement that failed for good, replayed by an operator."""
    return bool(known["status"] == "failed" and known["message_id"] == context.message_id)


async def _refund(cancellation: OrderCancelled, context: Context) -> None:
    known: dict[str, Any] | None = payments.get(cancellation.order_id)
    if known is None or known["status"] != "captured":
        return  # never charged, or refunded already: there is nothing to give back
    amount, currency = known["amount"], known["currency"]
    await provider.refund(cancellation.order_id, amount, currency, before_call=context.ensure_lease)
    payments[cancellation.order_id] = {**known, "status": "refunded"}
    context.emit(PAYMENTS, PaymentRefunded(cancellation.order_id, amount, currency, context.now_ms))
