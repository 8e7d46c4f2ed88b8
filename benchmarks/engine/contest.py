"""What a contestant is told, and the one piece of work that each of them does.

A contestant is a module with a variant: `python -m MODULE VARIANT --broker ...` is a worker
that takes the source topic from its beginning in the group it is given, until SIGTERM tells
it to stop politely. It reports nothing: the judge looks from outside.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MESSAGE_ID = "message-id"


@dataclass(frozen=True, slots=True)
class Contest:
    """Where one contestant works.

    Attributes:
        variant: which of the module's contestants to be.
        broker: `kafka://host:port`.
        source: topic to read, filled before the start; header `message-id` on every record.
        output: topic for one event per message, with as many partitions as the source.
        group: consumer group and app id; changelog topics are `<group>-<table>-changelog`.
        partitions: of the source, the output and every changelog.
        data_dir: an empty directory that belongs to this contestant alone.
    """

    variant: str
    broker: str
    source: str
    output: str
    group: str
    partitions: int
    data_dir: Path

    @property
    def servers(self) -> str:
        """The broker's address as aiokafka wants it, `host:port`."""
        return self.broker.removeprefix("kafka://")

    def command(self, module: str) -> list[str]:
        """Argument vector of the worker process, in the interpreter that runs this."""
        return [
            *(sys.executable, "-m", module, self.variant),
            *("--broker", self.broker, "--source", self.source, "--output", self.output),
            *("--group", self.group, "--partitions", str(self.partitions)),
            *("--data-dir", str(self.data_dir)),
        ]


def from_command_line(variants: Sequence[str], argv: Sequence[str] | None = None) -> Contest:
    """Read back what `Contest.command` wrote; ends the process on wrong usage."""
    return Contest(**vars(parser_of(variants).parse_args(argv)))


def parser_of(variants: Sequence[str]) -> argparse.ArgumentParser:
    """Reads what `Contest.command` wrote."""
    parser = argparse.ArgumentParser(description="One contestant of scripts/bench.")
    parser.add_argument("variant", choices=variants)
    for name in ("--broker", "--source", "--output", "--group"):
        parser.add_argument(name, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    return parser


def deposit(
    row: dict[str, int] | None, message: dict[str, Any], message_id: str
) -> tuple[dict[str, int], dict[str, Any]]:
    """The business of the benchmark: the account's next row, and the event that tells of it.

    The event carries the row's count, so that one message too many, too few or in the wrong
    place shows in the output topic.
    """
    count, total = (row["count"], row["total"]) if row else (0, 0)
    row = {"count": count + 1, "total": total + message["amount"]}
    return row, {"type": "Balance", "account": message["account"], "id": message_id, **row}
