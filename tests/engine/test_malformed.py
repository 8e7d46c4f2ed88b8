"""Whatever arrives goes where the contract says, and stops nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bookstore_streams.core import events
from bookstore_streams.errors import PermanentError, TransientError
from bookstore_streams.testing.memory import until

if TYPE_CHECKING:
    from tests.engine.conftest import World

ID = [("message-id", b"m1")]
KNOWN = frozenset({"Test"})
FINE = b'{"type": "Test"}'


@pytest.mark.parametrize(
    ("key", "value", "headers", "reason"),
    [
        (b"A", b"no json", ID, "undecodable"),
        (b"A", b"", ID, "undecodable"),
        (b"A", b'{"type": NaN}', ID, "undecodable"),
        (b"A", b"\xff\xfe", ID, "undecodable"),
        (b"A", b"[" * 500 + b"]" * 500, ID, "undecodable"),
        (b"\xff", FINE, ID, "undecodable"),
        (None, FINE, ID, "missing-key"),
        (b"", FINE, ID, "missing-key"),
        (None, b"no json", [], "missing-key"),
        (b"A", FINE, [], "missing-message-id"),
        (b"A", FINE, [("message-id", b"")], "missing-message-id"),
        (b"A", FINE, [("message-id", None)], "missing-message-id"),
        (b"A", FINE, [("message-id", b"m0"), ("message-id", b"\xff")], "missing-message-id"),
        (b"A", b"no json", [], "missing-message-id"),
        (b"A", b"[]", ID, "permanent"),
        (b"A", b"{}", ID, "permanent"),
        (b"A", b'{"type": 5}', ID, "permanent"),
    ],
)
async def test_a_broken_record_is_dead_lettered_as_it_was_and_its_key_goes_on(
    world: World, key: bytes | None, value: bytes, headers: Any, reason: str
) -> None:
    consumer = world.consumer(known_types=KNOWN, on_dead_letter=world.hook)
    worker = await world.start(consumer)
    world.broker.produce("orders", key, value, headers)
    world.send("A", "a2")
    await world.until_applied("a2")
    (letter,) = world.dead()
    assert (letter.key, letter.value) == (key, value)
    assert letter.header("dlt-reason") == reason
    assert letter.header("retry-attempt") == "0"
    assert [h for h in letter.headers if h in headers] == headers
    assert world.called() == ["a2"]
    assert world.letters == []  # there is no event that the hook could be given
    await worker.stop()
    assert world.offset() == 2


@pytest.mark.parametrize(
    ("value", "cause"),
    [(None, "tombstone"), (b'{"type": "Other"}', "unknown-type")],
)
@pytest.mark.parametrize("key", [None, b"A"])
async def test_tombstones_and_unknown_types_are_counted_and_ignored_whatever_they_lack(
    world: World, key: bytes | None, value: bytes | None, cause: str
) -> None:
    worker = await world.start(world.consumer(known_types=KNOWN))
    world.broker.produce("orders", key, value, [])
    world.send("A", "a2")
    await until(lambda: world.offset() == 2)
    assert world.called() == ["a2"]
    assert world.dead() == []
    assert worker.engine.counters[f"billing:ignored:{cause}"] == 1
    await worker.stop()


async def test_a_record_that_is_only_ignored_moves_the_offset(world: World) -> None:
    worker = await world.start()
    world.broker.produce("orders", b"A", None)
    await until(lambda: world.offset() == 1)
    await worker.stop()


async def test_an_event_that_breaks_its_schema_is_permanent(world: World) -> None:
    consumer = world.consumer(
        parse=events.parse, known_types=frozenset({"OrderPlaced"}), on_dead_letter=world.hook
    )
    worker = await world.start(consumer)
    world.send("A", "a1", value={"type": "OrderPlaced", "lines": []})
    await until(world.dead)
    (letter,) = world.dead()
    assert letter.header("dlt-reason") == "permanent"
    assert letter.header("dlt-exception-type") == "PermanentError"
    assert letter.header("retry-attempt") == "0"
    assert world.letters == []
    await worker.stop()


async def test_a_parser_that_fails_in_its_own_way_is_permanent_too(world: World) -> None:
    def parse(document: Any) -> Any:
        raise RecursionError("too deep")

    worker = await world.start(world.consumer(parse=parse))
    world.send("A", "a1")
    await until(world.dead)
    assert world.reasons() == {"a1": "permanent"}
    assert world.dead()[0].header("dlt-exception-type") == "RecursionError"
    await worker.stop()


async def test_the_position_stands_in_for_a_missing_id_where_the_consumer_says_so(
    world: World,
) -> None:
    consumer = world.consumer(missing_id_from_offset=True)
    worker = await world.start(consumer)
    world.scripts["orders-0-1"] = [TransientError("no")]
    for _ in range(3):
        world.send("A")
    await world.until_applied("orders-0-0", "orders-0-1", "orders-0-2")
    assert world.called() == ["orders-0-0", "orders-0-1", "orders-0-1", "orders-0-2"]
    await worker.stop()


async def test_a_broken_record_of_a_parked_key_waits_for_its_turn(world: World) -> None:
    """Order holds for dead letters too: the head first, then the broken one, then the next."""
    world.scripts["a1"] = [TransientError("no"), PermanentError("never")]
    worker = await world.start(world.consumer(known_types=KNOWN))
    world.send("A", "a1")
    world.send("A", "a2", value=b"no json")
    world.send("A", None)
    world.send("A", "a3")
    await until(lambda: world.offset() == 4)
    assert world.dead() == []
    await world.until_applied("a3")
    found = [(letter.offset, letter.header("dlt-reason")) for letter in world.dead()]
    assert [reason for _, reason in found] == ["permanent", "undecodable", "missing-message-id"]
    assert world.called() == ["a1", "a1", "a3"]
    assert world.parked("A") is None
    await worker.stop()


async def test_the_same_broken_record_read_again_is_dead_lettered_once(world: World) -> None:
    """Without an id its position stands in: a crash after the commit does not double it."""
    worker = await world.start()
    gate = world.gate("slow")
    world.send("S", "slow")
    world.send(None, None)
    world.send("A", None)
    await until(lambda: len(world.dead()) == 2)
    assert world.offset() is None
    assert gate.reached.is_set()
    await worker.kill()
    worker = await world.start()
    await world.until_applied("slow")
    await until(lambda: world.offset() == 3)
    assert len(world.dead()) == 2
    await worker.stop()


async def test_a_thousand_broken_records_in_a_row_slow_nothing_down(world: World) -> None:
    worker = await world.start(world.consumer(known_types=KNOWN))
    shapes: list[tuple[bytes | None, bytes | None, Any]] = [
        (None, FINE, ID), (b"A", b"\xff", ID), (b"A", FINE, []), (b"A", b"[]", ID),
        (b"A", None, []), (b"A", b'{"type": "Other"}', []),
    ]  # fmt: skip
    for n in range(1_000):
        key, value, headers = shapes[n % len(shapes)]
        given = [("message-id", b"m%d" % n)] if headers else []
        world.broker.produce("orders", key, value, given)
    world.send("A", "last")
    await world.until_applied("last")
    assert world.calls[-1].at_ms - world.broker.records("orders")[0].timestamp < 1_000
    counters = worker.engine.counters
    ignored = sum(counters[f"billing:ignored:{c}"] for c in ("tombstone", "unknown-type"))
    assert len(world.dead()) + ignored == 1_000
    await worker.stop()
    assert world.offset() == 1_001


@pytest.mark.parametrize(
    "text",
    ["x" * 300_000, "\x01" * 300_000],
    ids=["plain", "six bytes each in JSON"],
)
async def test_a_huge_message_id_stops_nothing(world: World, text: str) -> None:
    world.scripts[text] = [TransientError("no")] * 20
    consumer = world.consumer(policy={"attempts_max": 20, "backoff_ms_max": 100})
    worker = await world.start(consumer)
    world.send("A", text)
    world.send("B", "b1")
    await world.until_applied("b1")
    await until(world.dead)
    assert len(world.attempts(text)) == 20  # no partition that starts again and again
    assert world.dead()[0].header("dlt-reason") == "attempts-exhausted"
    await worker.stop()


async def test_an_event_that_is_too_large_with_its_headers_is_refused_before_it_is_staged(
    world: World,
) -> None:
    """`causation-id` is the id of the message, however long that is."""
    message_id = "x" * 1_048_200
    worker = await world.start()
    world.send("A", message_id, value={})
    world.send("B", "b1")
    await world.until_applied("b1")
    await until(lambda: world.outcome(message_id))
    assert world.called().count(message_id) == 1
    await worker.stop()


@pytest.mark.parametrize(
    "key",
    ["k" * 1_000_000, "\x01" * 1_000_000],
    ids=["plain", "six bytes each in JSON"],
)
async def test_a_huge_key_stops_nothing(world: World, key: str) -> None:
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start()
    world.send(key, "a1", value={})
    world.send("B", "b1")
    await world.until_applied("b1")
    await until(lambda: world.outcome("a1") in ("applied", "dead-lettered"))
    assert len(world.called(key)) <= 2
    await worker.stop()


async def test_a_key_larger_than_any_row_may_be_stops_nothing(world: World) -> None:
    """A source topic takes compressed batches: a record can be larger than what ours take."""
    world.broker.limit("orders", 64 << 20)
    world.scripts["a1"] = [TransientError("no")] * 9
    worker = await world.start(world.consumer(known_types=None))
    world.send("k" * 5_000_000, "a1", value={})
    world.send("B", "b1")
    await world.until_applied("b1")
    await until(lambda: world.outcome("a1") == "dead-lettered")
    assert world.called().count("a1") <= 1
    await worker.stop()
