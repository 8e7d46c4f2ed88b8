"""One message's unit of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from bookstore_streams.core.effects import Attempt
from bookstore_streams.core.envelope import emitted_id
from bookstore_streams.core.events import PaymentCaptured
from bookstore_streams.engine.consumer import Consumer
from bookstore_streams.engine.unit_of_work import Context, Surroundings
from bookstore_streams.errors import LeaseLostError, RecordTooLargeError, UnitOfWorkError
from bookstore_streams.ports import Headers

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def handle(event: object, context: object) -> None:
    pass


CONSUMER = Consumer("billing", ("orders",), handle, "billing.dlt")


def context(
    *,
    consumer: Consumer = CONSUMER,
    message_id: str = "m1",
    headers: Headers = (),
    attempt: Attempt | None = Attempt(2, 1, 1),  # noqa: B008 - frozen
    read: Callable[[str, bytes], bytes | None] = lambda table, key: None,
    has_lease: bool = True,
    bytes_max: int = 1_000,
) -> Context:
    return Context(
        consumer,
        "A",
        message_id,
        headers,
        attempt,
        5,
        Surroundings(read, lambda: has_lease, bytes_max),
    )


def test_a_handler_is_told_who_and_which_call_it_is() -> None:
    own = context()
    assert (own.consumer, own.key, own.message_id, own.now_ms) == ("billing", "A", "m1", 5)
    assert (own.attempt, own.attempt_in_round) == (2, 1)
    hook = context(attempt=None)
    assert (hook.attempt, hook.attempt_in_round) == (0, 0)


def test_it_reads_its_own_writes_first() -> None:
    own = context(read=lambda table, key: b"finished")
    assert own.get("t", b"k") == b"finished"
    own.put("t", b"k", b"mine")
    assert own.get("t", b"k") == b"mine"
    assert own.get("u", b"k") == b"finished"
    own.put("t", b"k", None)
    assert own.get("t", b"k") is None
    assert own.writes == {("t", b"k"): None}


def test_an_event_carries_an_id_of_its_own_its_cause_and_the_trace() -> None:
    headers = [("message-id", b"m1"), ("traceparent", PARENT), ("other", b"x")]
    own = context(headers=headers)
    first = own.emit("events", {"a": 1})
    second = own.emit("events", {"a": 2}, key="B")
    assert [first, second] == [emitted_id("billing", "m1", n) for n in (0, 1)]
    one, two = own.emissions
    assert (one.topic, one.key, one.value) == ("events", b"A", b'{"a":1}')
    assert two.key == b"B"
    assert one.headers == [
        ("message-id", first.encode()),
        ("causation-id", b"m1"),
        ("traceparent", PARENT),
    ]


def test_a_second_run_emits_the_same_ids_and_a_hook_others() -> None:
    runs = [[own.emit("e", n) for n in range(3)] for own in (context(), context())]
    hook = context(attempt=None)
    hooked = [hook.emit("e", n) for n in range(3)]
    assert runs[0] == runs[1]
    assert len({*runs[0], *hooked}) == 6


def test_an_event_class_is_written_as_its_document() -> None:
    own = context()
    own.emit("payments", PaymentCaptured("o1", "12.50", "EUR", 0))
    assert orjson.loads(own.emissions[0].value or b"") == {
        "type": "PaymentCaptured",
        "order_id": "o1",
        "amount": "12.50",
        "currency": "EUR",
        "occurred_at": "1970-01-01T00:00:00.000Z",
    }


def test_an_event_that_cannot_be_written_leaves_no_gap_in_the_ids() -> None:
    own = context()
    with pytest.raises(TypeError):
        own.emit("e", object())
    with pytest.raises(RecordTooLargeError):
        own.emit("e", "x" * 2_000)
    assert own.emit("e", 1) == emitted_id("billing", "m1", 0)
    assert len(own.emissions) == 1


@pytest.mark.parametrize("size", [994, 995])
def test_a_row_is_refused_beyond_the_bound(size: int) -> None:
    own = context()
    write = lambda: own.put("t", b"key..", bytes(size + 1))  # noqa: E731
    if size == 994:
        write()
    else:
        with pytest.raises(RecordTooLargeError, match=r"a row of table 't' of 1001 bytes"):
            write()
        assert own.writes == {}


def test_an_events_headers_count_towards_its_size() -> None:
    own = context(message_id="m" * 512, bytes_max=600)
    own.emit("e", "x" * 50)
    with pytest.raises(RecordTooLargeError):
        own.emit("e", "x" * 150)


def test_the_cause_of_an_event_is_short_however_long_the_id_is() -> None:
    own = context(message_id="m" * 500_000)
    own.emit("e", 1)
    assert len(dict(own.emissions[0].headers)["causation-id"] or b"") < 100


def test_a_consumer_emits_only_where_it_says_so() -> None:
    own = context(consumer=replace(CONSUMER, emits=frozenset({"payments"})))
    own.emit("payments", 1)
    with pytest.raises(UnitOfWorkError, match="emits="):
        own.emit("elsewhere", 1)


def test_after_the_handler_has_ended_nothing_can_be_written() -> None:
    own = context(read=lambda table, key: b"finished")
    own.is_open = False
    calls: list[Callable[[], Any]] = [
        lambda: own.put("t", b"k", b"v"),
        lambda: own.emit("e", 1),
    ]
    for call in calls:
        with pytest.raises(UnitOfWorkError, match="has ended"):
            call()
    assert own.get("t", b"k") == b"finished"
    assert (own.writes, own.emissions) == ({}, [])


def test_without_a_lease_no_outside_call_is_to_be_made() -> None:
    context().ensure_lease()
    with pytest.raises(LeaseLostError, match="billing may not own key 'A'"):
        context(has_lease=False).ensure_lease()
