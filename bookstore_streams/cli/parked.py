"""`parked list` and `parked show`: the parking lot, read from its changelogs.

They need Kafka and no worker, so they also work while none can start.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import click
import orjson

from bookstore_streams.core.parking import (
    ParkedKey,
    message_prefix,
    parked_key,
    split_message_key,
    split_parked_key,
)
from bookstore_streams.core.parking_view import key_detail, key_row, message_row

from .broker import Broker
from .output import (
    json_option,
    moment,
    print_json,
    print_table,
    printable,
    progress,
    run,
    wants_json,
)

KEYS = "parked_keys"
MESSAGES = "parked_messages"

# A commit that falls between the reads of the two changelogs shows a key without its message.
READS_MAX = 5


@dataclass(frozen=True, slots=True)
class Shown:
    """A parked key, and its messages in order of their sequence."""

    parked: ParkedKey
    messages: list[tuple[int, bytes]]

    def is_whole(self) -> bool:
        """Whether key and messages are of the same commit."""
        expected = range(self.parked.head, self.parked.tail)
        return [sequence for sequence, _ in self.messages] == list(expected)


def parked_group(broker: Broker) -> click.Group:
    """The commands.

    Args:
        broker: whose changelogs to read.
    """

    @click.group("parked")
    def parked() -> None:
        """Look at parked keys: those whose first message waits for its next attempt."""

    @parked.command("list")
    @click.option("--consumer", help="Only keys of this consumer.")
    @json_option
    def list_(consumer: str | None, as_json: bool) -> None:
        """List the parked keys, the earliest due first."""
        with progress("Reading the parked keys") as on_progress:
            tables = run(broker.read_tables([KEYS], lambda table, key: True, on_progress))
        rows = []
        for (_, row_key), raw in tables[KEYS].items():
            owner, key = split_parked_key(row_key)
            if consumer in (None, owner):
                one = ParkedKey.from_row(orjson.loads(raw))
                rows.append(key_row(owner, key, one, is_running=False))
        rows.sort(key=itemgetter("due_ms", "consumer", "key"))
        if wants_json(as_json):
            print_json(rows)
        elif rows:
            _print_list(rows)
        else:
            click.echo("Nothing is parked.")

    @parked.command()
    @click.argument("key")
    @click.option("--consumer", default="billing", show_default=True, help="Whose key it is.")
    @json_option
    def show(key: str, consumer: str, as_json: bool) -> None:
        """Show one parked key: its failed attempts, and its messages in order."""
        with progress("Reading the parking lot") as on_progress:
            shown = run(_read(broker, consumer, key, on_progress))
        if shown is None:
            raise click.ClickException(
                f"Key {printable(key)} of consumer {printable(consumer)} is not parked."
            )
        document = key_detail(consumer, key, shown.parked, is_running=False)
        document["messages"] = [message_row(*message) for message in shown.messages]
        if wants_json(as_json):
            print_json(document)
        else:
            _print_key(document)

    return parked


async def _read(broker: Broker, consumer: str, key: str, on_progress: Any) -> Shown | None:
    """The key with its messages, of one commit if possible; None when it is not parked."""
    try:
        row_key, prefix = parked_key(consumer, key), message_prefix(consumer, key)
    except UnicodeEncodeError:
        return None  # every key in the lot is UTF-8

    def is_wanted(table: str, row: bytes) -> bool:
        return row == row_key if table == KEYS else row.startswith(prefix)

    for _ in range(READS_MAX):
        tables = await broker.read_tables([KEYS, MESSAGES], is_wanted, on_progress)
        keys = {partition: raw for (partition, _), raw in tables[KEYS].items()}
        if not keys:
            return None
        # Its messages are in the same partition as itself; there is only one, unless somebody
        # produced to a partition of his choice.
        partition, raw = min(keys.items())
        messages = sorted(
            (split_message_key(row)[2], content)
            for (number, row), content in tables[MESSAGES].items()
            if number == partition
        )
        shown = Shown(ParkedKey.from_row(orjson.loads(raw)), messages)
        if shown.is_whole():
            break
    return shown


def _print_list(rows: list[dict[str, Any]]) -> None:
    now_ms = _now_ms()
    print_table(
        ("CONSUMER", "KEY", "STATE", "DUE", "ATTEMPTS", "MESSAGES", "PARKED", "CAUSE"),
        (
            (
                row["consumer"],
                row["key"],
                row["state"],
                moment(row["due_ms"], now_ms),
                row["attempts"],
                row["count"],
                moment(row["oldest_ms"], now_ms),
                row["cause"],
            )
            for row in rows
        ),
    )


def _print_key(document: dict[str, Any]) -> None:
    now_ms = _now_ms()
    _print_list([document])
    click.echo("\nFailed attempts, oldest first:")
    print_table(
        ("WHEN", "ATTEMPT", "MESSAGE", "CAUSE"),
        (
            (moment(one["at_ms"], now_ms), one["attempt"], one["message_id"], one["cause"])
            for one in document["history"]
        ),
    )
    click.echo("\nMessages in order:")
    print_table(
        ("NUMBER", "MESSAGE", "POSITION", "VALUE"),
        (
            (
                one["sequence"],
                one.get("message_id"),
                f"{one['topic']} [[{one['partition']}]] @{one['offset']}"
                if "topic" in one
                else None,
                one.get("value") if "error" not in one else one["error"],
            )
            for one in document["messages"]
        ),
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
