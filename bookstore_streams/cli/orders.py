"""`orders place` and `orders cancel`: put one event of an order on its topic."""

from __future__ import annotations

import time
import uuid
from typing import Any

import click
import orjson

from bookstore_streams.core.envelope import MESSAGE_ID, position_text
from bookstore_streams.core.events import Event, parse, time_text, to_document
from bookstore_streams.errors import PermanentError

from .broker import Broker
from .output import json_option, print_json, printable, run, wants_json

ORDERS = "bookstore.orders"


class LineType(click.ParamType):
    """`SKU:QUANTITY:PRICE`; the sku may hold colons itself."""

    name = "SKU:QUANTITY:PRICE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        """One line of an order as the event has it; whether it is valid is for `parse` to say."""
        parts = str(value).rsplit(":", 2)
        if len(parts) < 3:
            self.fail(f"{value!r} must be SKU:QUANTITY:PRICE, such as book-1:2:9.99", param, ctx)
        sku, quantity, price = parts
        try:
            return {"sku": sku, "quantity": int(quantity), "unit_price": price}
        except ValueError:
            self.fail(f"{quantity!r} in {value!r} must be a whole number", param, ctx)


message_id_option = click.option(
    "--message-id",
    help="Id of the message; sent again under the same id it takes effect once. "
    "[default: a new UUID]",
)


def orders_group(broker: Broker) -> click.Group:
    """The commands.

    Args:
        broker: to send to.
    """

    @click.group("orders")
    def orders() -> None:
        """Place and cancel orders."""

    @orders.command()
    @click.option("--order-id", help="[default: a new UUID]")
    @click.option("--customer", "customer_id", required=True, help="Id of the customer.")
    @click.option("--currency", required=True, help="Three capital letters, such as EUR.")
    @click.option(
        "--line", "lines", type=LineType(), multiple=True, required=True, help="Repeatable."
    )
    @click.option("--placed-at", help="RFC 3339 time with offset. [default: now]")
    @message_id_option
    @json_option
    def place(
        order_id: str | None,
        customer_id: str,
        currency: str,
        lines: tuple[dict[str, Any], ...],
        placed_at: str | None,
        message_id: str | None,
        as_json: bool,
    ) -> None:
        """Place an order: OrderPlaced to bookstore.orders."""
        document = {
            "type": "OrderPlaced",
            "order_id": _given(order_id),
            "customer_id": customer_id,
            "currency": currency,
            "lines": list(lines),
            "placed_at": _now() if placed_at is None else placed_at,
        }
        _send(broker, document, _given(message_id), as_json)

    @orders.command()
    @click.argument("order_id")
    @click.option("--reason", required=True, help="Why, for people.")
    @message_id_option
    @json_option
    def cancel(order_id: str, reason: str, message_id: str | None, as_json: bool) -> None:
        """Cancel an order: OrderCancelled to bookstore.orders."""
        document = {
            "type": "OrderCancelled",
            "order_id": order_id,
            "reason": reason,
            "cancelled_at": _now(),
        }
        _send(broker, document, _given(message_id), as_json)

    return orders


def _send(broker: Broker, document: dict[str, Any], message_id: str, as_json: bool) -> None:
    if not message_id:
        raise click.ClickException("The message id must not be empty.")
    order_id = document["order_id"]
    try:
        key, header = order_id.encode(), message_id.encode()
        event: Event = parse(document)
    except PermanentError as error:
        raise click.ClickException(printable(str(error))) from error
    except UnicodeEncodeError as error:
        raise click.ClickException("An id is not valid UTF-8.") from error
    value = orjson.dumps(to_document(event))
    partition, offset = run(broker.send(ORDERS, key, value, [(MESSAGE_ID, header)]))
    if wants_json(as_json):
        print_json(
            {
                "type": document["type"],
                "order_id": order_id,
                "message_id": message_id,
                "topic": ORDERS,
                "partition": partition,
                "offset": offset,
            }
        )
    else:
        where = position_text(ORDERS, partition, offset)
        click.echo(f"{document['type']} {printable(order_id)} is message {message_id}, {where}")


def _given(identity: str | None) -> str:
    return str(uuid.uuid4()) if identity is None else identity


def _now() -> str:
    return time_text(time.time_ns() // 1_000_000)
