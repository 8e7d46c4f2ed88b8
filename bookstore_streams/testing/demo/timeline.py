"""The timeline: what was seen outside of the worker, as one sentence per moment.

Owns the words and the order of moments. Refuses to ask anybody: what was seen is handed in, as
records of topics, calls of the provider and rows of the parking lot.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, get_args

import orjson

from bookstore_streams.core.envelope import (
    DLT_EXCEPTION_MESSAGE,
    DLT_REASON,
    MESSAGE_ID,
    RETRY_ATTEMPT,
)

from .story import DEAD_LETTERS, ORDERS, Order

Kind = Literal["told", "sent", "failed", "booked", "refused", "waits", "dead-letter", "published"]

_KINDS: Final = get_args(Kind)

# Each source is asked several times a second, so what happened at one time is heard of at
# different ones. A moment is kept back this long, so that the timeline is in order of time.
HOLD_MS: Final = 300


@dataclass(frozen=True, slots=True)
class Record:
    """A committed record of a topic.

    Attributes:
        key: as text, empty where it has none.
        headers: name -> last value, as text.
        at_ms: its timestamp, epoch ms.
    """

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes | None
    headers: Mapping[str, str]
    at_ms: int

    @property
    def document(self) -> dict[str, Any]:
        """The decoded object; empty where the value is none."""
        try:
            document = orjson.loads(self.value or b"null")
        except orjson.JSONDecodeError:
            return {}
        return document if isinstance(document, dict) else {}


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """Something that happened.

    Attributes:
        at_ms: when, epoch ms.
        rank: within a millisecond causes come before what they cause.
        number: and else what was seen first.
        order: its key.
        kind: what it is.
        text: in words.
    """

    at_ms: int
    rank: int
    number: int
    order: str
    kind: Kind
    text: str


@dataclass(slots=True)
class Timeline:
    """Turns what is seen into moments, and hands them out in order of time.

    Attributes:
        start_ms: from which the text counts, epoch ms.
        attempts_max: that a message gets.
        order_columns: as long is the longest key to be expected.
        counts: moments so far, by kind.
    """

    start_ms: int
    attempts_max: int
    order_columns: int
    counts: Counter[Kind] = field(default_factory=Counter)
    _held: list[Moment] = field(default_factory=list)
    _number: int = 0
    _attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _ids: set[str] = field(default_factory=set)
    _parked: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def order_begins(self, order: Order, at_ms: int) -> None:
        """An order that has something special is about to be sent."""
        if order.intro:
            self._add(at_ms, order.id, "told", f"({order.intro})")

    def called(self, call: Mapping[str, Any]) -> None:
        """The provider has answered a call."""
        order_id, operation = call["order_id"], call["operation"]
        self._attempts[order_id, operation] += 1
        number, result = self._attempts[order_id, operation], call["result"]
        what = f"{operation}, attempt {number}"
        money = f"{call['amount']} {call['currency']}"
        match result.partition(":"):
            case ("booked", _, _):
                kind: Kind = "booked"
                text = f"{what}: {money} {'charged' if operation == 'charge' else 'given back'}"
            case ("replayed", _, _):
                kind, text = "booked", f"{what}: done before, and not done again"
            case ("failed", _, status) if _is_lasting(status):
                kind, text = "refused", f"{what}: the provider refuses, {_status(status)}"
            case ("failed", _, status):
                kind, text = "failed", f"{what}: the provider answers {_status(status)}"
            case ("rejected", _, status):
                kind, text = "refused", f"{what}: the provider refuses, {_status(status)}"
            case _:
                kind, text = "failed", f"{what}: no answer ({result})"
        self._add(call["at_ms"], order_id, kind, text)

    def read(self, record: Record) -> None:
        """A committed record was read from a topic."""
        match record.topic:
            case topic if topic == ORDERS:
                kind: Kind = "sent"
                text = self._sent(record)
            case topic if topic == DEAD_LETTERS:
                reason, attempts = record.headers.get(DLT_REASON), record.headers.get(RETRY_ATTEMPT)
                cause = record.headers.get(DLT_EXCEPTION_MESSAGE)
                tried = "1 attempt" if attempts == "1" else f"{attempts} attempts"
                kind, text = "dead-letter", f"dead letter ({reason}, after {tried}): {cause}"
            case _:
                kind, text = "published", f"event {_type(record)} to {record.topic}"
        self._add(record.at_ms, record.key, kind, text)

    def looked(self, rows: Iterable[Mapping[str, Any]], now_ms: int) -> None:
        """The parking lot was looked at; `rows` are all of its keys."""
        found = {(row["consumer"], row["key"]): row for row in rows}
        for place, row in found.items():
            before = self._parked.get(place)
            # Due again at once means that it is being settled: there is nothing to wait for.
            if (before is None or before["due_ms"] != row["due_ms"]) and row["due_ms"] > now_ms:
                self._add(now_ms, row["key"], "waits", self._waits(row, is_new=before is None))
            if row["count"] > (1 if before is None else before["count"]):
                waiting = _messages(row["count"] - 1)
                self._add(now_ms, row["key"], "waits", f"{waiting} behind it, in order")
        self._parked = found

    def until(self, now_ms: int | None) -> list[Moment]:
        """The moments that are over by then, oldest first, each once; None gives all."""
        ready = []
        while self._held and (now_ms is None or self._held[0].at_ms <= now_ms - HOLD_MS):
            ready.append(heapq.heappop(self._held))
        return ready

    def seconds(self, at_ms: int) -> float:
        """Seconds since the start; negative before it."""
        return (at_ms - self.start_ms) / 1_000

    def _add(self, at_ms: int, order: str, kind: Kind, text: str) -> None:
        self._number += 1
        self.counts[kind] += 1
        moment = Moment(at_ms, _KINDS.index(kind), self._number, order, kind, text)
        heapq.heappush(self._held, moment)

    def _sent(self, record: Record) -> str:
        message_id = record.headers.get(MESSAGE_ID, "")
        is_known = message_id in self._ids
        self._ids.add(message_id)
        event, where = _type(record), f"partition {record.partition}"
        if is_known:
            return f"the same {event} again, with the same message-id ({where})"
        return f"{event} arrives ({where})"

    def _waits(self, row: Mapping[str, Any], *, is_new: bool) -> str:
        due = f"{self.seconds(row['due_ms']):.2f} s"
        attempt = f"attempt {row['attempts'] + 1} of {self.attempts_max}"
        if is_new:
            return f"waits until {due} for {attempt}, because of {row['cause']}"
        return f"waits again, until {due} for {attempt}"


def waiting_line(row: Mapping[str, Any], attempts_max: int, now_ms: int) -> tuple[str, str, str]:
    """A parked key as (key, what it waits for, why), seen from now."""
    attempt = f"attempt {row['attempts'] + 1} of {attempts_max}"
    left_ms = row["due_ms"] - now_ms
    if row["state"] == "running" or left_ms <= 0:
        what = f"{attempt} now"
    else:
        what = f"{attempt} in {left_ms / 1_000:.1f} s"
    if row["count"] > 1:
        what += f", {_messages(row['count'] - 1)} behind it"
    return row["key"], what, row["cause"]


def _type(record: Record) -> str:
    found = record.document.get("type")
    return found if isinstance(found, str) else f"{record.value!r}"


def _is_lasting(status: str) -> bool:
    """Whether the contract calls this HTTP status permanent."""
    return status.startswith("4") and status not in ("408", "429")


def _status(status: str) -> str:
    """An HTTP status with its name."""
    try:
        return f"{status} {HTTPStatus(int(status)).phrase}"
    except ValueError:
        return status


def _messages(count: int) -> str:
    return "1 message waits" if count == 1 else f"{count} messages wait"
