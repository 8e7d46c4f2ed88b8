"""Whatever arrives goes where the contract says, and nothing behind it has to wait."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from bookstore_streams.testing.brokers import Broker
from tests.chaos.shop import (
    DEAD_LETTERS,
    ORDERS,
    PAYMENTS,
    Seen,
    Shop,
    Tail,
    WorkerProcess,
    cancelled,
    placed,
    until,
)

POLICY = {
    "BOOKSTORE_BILLING_BACKOFF_MS_BASE": "300",
    "BOOKSTORE_BILLING_BACKOFF_FACTOR": "1",
    "BOOKSTORE_BILLING_JITTER": "none",
    "BOOKSTORE_BILLING_ATTEMPTS_MAX": "3",
}
PARTITION = 6
KEEP = "keep"  # stands for a key or id of the record's own
HEALTHY_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Case:
    """A record, and the reason for which it becomes a dead letter; None where it is dropped."""

    name: str
    reason: str | None
    value: bytes | None
    key: bytes | str | None = KEEP
    message_id: bytes | str | None = KEEP
    headers: Sequence[tuple[str, bytes]] = ()


def order_with(**fields: Any) -> bytes:
    """An order with some fields replaced; a field that is None is left out."""
    value = {**placed("order"), **fields}
    return json.dumps(
        {name: content for name, content in value.items() if content is not None}
    ).encode()


def line_with(**fields: Any) -> bytes:
    line = {"sku": "book", "quantity": 1, "unit_price": "1.00", **fields}
    return order_with(lines=[{n: content for n, content in line.items() if content is not None}])


GOOD = order_with()
DEEP = 5_000

CASES = [
    Case("not JSON", "undecodable", b"{nojson"),
    Case("zero bytes", "undecodable", b""),
    Case("invalid UTF-8", "undecodable", b'{"type": "\xff\xfe"}'),
    Case("cut in the middle", "undecodable", GOOD[:40]),
    Case("two documents", "undecodable", GOOD + GOOD),
    Case("byte order mark", "undecodable", b"\xef\xbb\xbf" + GOOD),
    Case("NaN literal", "undecodable", GOOD.replace(b'"12.50"', b"NaN")),
    Case("Infinity literal", "undecodable", GOOD.replace(b'"12.50"', b"-Infinity")),
    Case("deep lists", "undecodable", b"[" * DEEP + b"]" * DEEP),
    Case("deep objects", "undecodable", b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    Case("NUL bytes", "undecodable", b"\0" * 100),
    Case("a list", "permanent", b"[]"),
    Case("a text", "permanent", b'"OrderPlaced"'),
    Case("a number", "permanent", b"42"),
    Case("JSON null", "permanent", b"null"),
    Case("no type", "permanent", b'{"order_id": "1"}'),
    Case("type is a number", "permanent", order_with(type=7)),
    Case("type is an object", "permanent", order_with(type={"a": 1})),
    Case("unknown type", None, b'{"type": "OrderPainted"}'),
    Case("unknown type without id", None, b'{"type": "OrderPainted"}', message_id=None),
    Case("unknown type without key", None, b'{"type": "OrderPainted"}', key=None),
    Case("tombstone", None, None),
    Case("tombstone without id", None, None, message_id=None),
    Case("tombstone without anything", None, None, key=b"", message_id=None),
    Case("no id", "missing-message-id", GOOD, message_id=None),
    Case("empty id", "missing-message-id", GOOD, message_id=b""),
    Case("id that is no text", "missing-message-id", GOOD, message_id=b"\xff\xfe"),
    Case("no id and no JSON", "missing-message-id", b"{nojson", message_id=None),
    Case("no key", "missing-key", GOOD, key=None),
    Case("empty key", "missing-key", GOOD, key=b""),
    Case("no key and no id", "missing-key", b"{nojson", key=None, message_id=None),
    Case("key that is no text", "undecodable", GOOD, key=b"\xff\xfe"),
    Case("no order id", "permanent", order_with(order_id=None)),
    Case("empty order id", "permanent", order_with(order_id="")),
    Case("order id is a number", "permanent", order_with(order_id=5)),
    Case("no lines", "permanent", order_with(lines=None)),
    Case("empty lines", "permanent", order_with(lines=[])),
    Case("lines are an object", "permanent", order_with(lines={})),
    Case("lines hold a number", "permanent", order_with(lines=[3])),
    Case("negative quantity", "permanent", line_with(quantity=-1)),
    Case("no quantity", "permanent", line_with(quantity=None)),
    Case("quantity zero", "permanent", line_with(quantity=0)),
    Case("quantity is a text", "permanent", line_with(quantity="1")),
    Case("quantity is true", "permanent", line_with(quantity=True)),
    Case("quantity is a fraction", "permanent", line_with(quantity=1.5)),
    Case("huge quantity", "permanent", line_with(quantity=10**30)),
    Case("negative price", "permanent", line_with(unit_price="-1.00")),
    Case("price NaN as text", "permanent", line_with(unit_price="NaN")),
    Case("price with exponent", "permanent", line_with(unit_price="1e3")),
    Case("price is a number", "permanent", line_with(unit_price=1.5)),
    Case("free of charge", "permanent", line_with(unit_price="0")),
    Case("currency in small letters", "permanent", order_with(currency="eur")),
    Case("no currency", "permanent", order_with(currency=None)),
    Case("time without offset", "permanent", order_with(placed_at="2026-01-01T00:00:00")),
    Case("time that is none", "permanent", order_with(placed_at="yesterday")),
    Case("time is a number", "permanent", order_with(placed_at=1)),
    Case("cancel without reason", "permanent", json.dumps({"type": "OrderCancelled"}).encode()),
    Case("900 KB of no JSON", "undecodable", b"x" * 900_000),
    Case("900 KB of a text", "permanent", b'"' + b"x" * 900_000 + b'"'),
    Case("many headers", "undecodable", b"{", headers=[(f"h{n}", b"v") for n in range(500)]),
    Case("a header many times", "undecodable", b"{", headers=[("same", b"v")] * 500),
    Case(
        "headers of ours",
        "undecodable",
        b"{",
        headers=[("dlt-reason", b"x"), ("retry-attempt", b"?")],
    ),
    Case("broken trace", "undecodable", b"{", headers=[("traceparent", b"\xff")]),
    Case("a very long id", "undecodable", b"{", message_id="i" * 50_000),
    Case("a very long key", "undecodable", b"{", key="k" * 50_000),
]
OURS = {
    "retry-attempt",
    "original-topic-partition-offset",
    "dlt-exception-type",
    "dlt-exception-message",
    "dlt-reason",
}


async def send(shop: Shop, case: Case) -> tuple[Any, bytes | None, list[tuple[str, bytes]]]:
    """Produce it; where it stands, and key and headers as they were sent."""
    own = shop.key_in(PARTITION, "bad")
    key = own if case.key == KEEP else case.key
    message_id = f"{own}/1" if case.message_id == KEEP else case.message_id
    at = await shop.send(key, case.value, message_id, case.headers, partition=PARTITION)
    headers = list(case.headers)
    if message_id is not None:
        headers.append(
            ("message-id", message_id if isinstance(message_id, bytes) else message_id.encode())
        )
    return at, key.encode() if isinstance(key, str) else key, headers


def position(record: Seen) -> str:
    return record.headers["original-topic-partition-offset"]


def test_each_kind_of_broken_record_goes_where_the_contract_says(
    broker: Broker, tmp_path: Path
) -> None:
    """Method: all of them in one partition, then a healthy order; dead letters keep the bytes."""
    asyncio.run(_send_all_kinds(broker, tmp_path))


async def _send_all_kinds(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, POLICY) as shop, Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        sent = {}
        for case in CASES:
            at, key, headers = await send(shop, case)
            sent[f"{ORDERS} [[{at.partition}]] @{at.offset}"] = case, key, headers
        await _is_charged_soon(shop, tail, worker)
        await until(shop.has_no_lag, 10, worker.tail)
        await tail.to_end()

        letters = {position(record): record for record in tail.of(DEAD_LETTERS)}
        assert len(letters) == len(tail.of(DEAD_LETTERS)), "one became two dead letters"
        wrong = []
        for where, (case, key, headers) in sent.items():
            letter = letters.pop(where, None)
            reason = None if letter is None else letter.headers["dlt-reason"]
            if reason != case.reason:
                wrong.append(f"{case.name}: {reason} instead of {case.reason}")
            if letter is not None:
                wrong += [
                    f"{case.name}: {text}" for text in _differences(letter, case, key, headers)
                ]
        assert not wrong, "\n".join(wrong)
        assert not letters
        # The schema-broken never became an order: nobody was asked and nothing was told.
        assert {r.key for r in tail.of(PAYMENTS)} <= set(shop.provider.control.ledger())
        assert await worker.stop() == 0


def _differences(
    letter: Seen, case: Case, key: bytes | None, headers: list[tuple[str, bytes]]
) -> list[str]:
    found = []
    if letter.value != case.value:
        found.append("the value changed")
    if letter.raw_key != key:
        found.append(f"key {letter.raw_key!r} instead of {key!r}")
    kept = [header for header in letter.all_headers if header[0] not in OURS]
    expected = [header for header in headers if header[0] not in OURS]
    if kept != expected:
        found.append(f"headers {kept[:5]} instead of {expected[:5]}")
    ours = [name for name, _ in letter.all_headers if name in OURS]
    if sorted(ours) != sorted(OURS):
        found.append(f"our headers are {ours}")
    if letter.headers["retry-attempt"] != "0":
        found.append(f"{letter.headers['retry-attempt']} attempts")
    if not 0 < len(letter.headers["dlt-exception-message"]) <= 1_000:
        found.append("no message, or a long one")
    return found


async def _is_charged_soon(shop: Shop, tail: Tail, worker: WorkerProcess) -> float:
    """Place a healthy order in the same partition; seconds until its event was seen."""
    order, started = shop.key_in(PARTITION, "healthy"), time.monotonic()
    await shop.send(order, placed(order), f"{order}/1")
    await tail.until(PAYMENTS, 1, HEALTHY_WITHIN_S, order)
    return time.monotonic() - started


BAD = [case for case in CASES if len(case.value or b"") < 100_000]


@pytest.mark.parametrize("is_one_kind", [True, False], ids=["of one kind", "of all kinds"])
def test_a_thousand_broken_records_in_a_row_stop_and_slow_nothing(
    broker: Broker,
    tmp_path: Path,
    is_one_kind: bool,
    record_property: Callable[[str, object], None],
) -> None:
    """Goal: a healthy order behind 1,000 broken records is charged at once.

    Stock Faust acknowledges a broken value unseen, and waits 5 s for each.
    """
    took_s = asyncio.run(_send_a_thousand(broker, tmp_path, is_one_kind))
    record_property("seconds until the order behind them was charged", round(took_s, 3))
    print(f"{broker.kind}: the order behind 1,000 broken records was charged after {took_s:.2f} s")


async def _send_a_thousand(broker: Broker, folder: Path, is_one_kind: bool) -> float:
    async with Shop(broker, folder, POLICY) as shop, Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        cases = [BAD[0] if is_one_kind else BAD[n % len(BAD)] for n in range(1_000)]
        own = shop.key_in(PARTITION, "bad")
        started = time.monotonic()
        for number, case in enumerate(cases):
            await shop.enqueue(
                own if case.key == KEEP else case.key,
                case.value,
                f"{own}/{number}" if case.message_id == KEEP else case.message_id,
                case.headers,
                partition=PARTITION,
            )
        order = shop.key_in(PARTITION, "healthy")
        await shop.send(order, placed(order), f"{order}/1")
        await tail.until(PAYMENTS, 1, HEALTHY_WITHIN_S, order)
        took_s = time.monotonic() - started
        await until(shop.has_no_lag, 10, worker.tail)
        await tail.to_end()
        # "A very long id" comes several times: the second one is a duplicate.
        ids = [n if case.message_id == KEEP else None for n, case in enumerate(cases)]
        expected = sum(
            case.reason is not None
            and (ids[n] is not None or case.name != "a very long id" or case not in cases[:n])
            for n, case in enumerate(cases)
        )
        assert len(tail.of(DEAD_LETTERS)) == expected
        assert await worker.stop() == 0
        return took_s


ODD_IDS = ["ö/😀 %\n", " blank first", "x" * 512, "100%", "a:charge", "\u202e\x00", '"quoted"']


def test_odd_but_valid_orders_are_charged(broker: Broker, tmp_path: Path) -> None:
    asyncio.run(_send_odd_ones(broker, tmp_path))


async def _send_odd_ones(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, POLICY) as shop, Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        run = shop.app_id
        odd = [f"{run[-8:]}{text}"[:512] for text in ODD_IDS]
        for order in odd:
            await shop.send(order, placed(order), f"{order}/1")
        twice, cloud, many, deep, long = (shop.key_in(n, "order") for n in range(5))
        await shop.send(
            twice, placed(twice), f"{twice}/last", [("message-id", b"first"), ("message-id", b"")]
        )
        await shop.send(cloud, placed(cloud), None, [("ce_id", f"{cloud}/1".encode())])
        await shop.send(many, placed(many), f"{many}/1", [(f"h{n}", b"v") for n in range(300)])
        nested: Any = 1
        for _ in range(100):
            nested = {"a": [nested]} if isinstance(nested, int) else [nested]
        await shop.send(deep, placed(deep, note=nested), f"{deep}/1")
        await shop.send(long, placed(long), f"{long}/" + "i" * 20_000)
        everything = [*odd, twice, cloud, many, deep, long]
        await tail.until(PAYMENTS, len(everything), 20, *everything)
        await tail.to_end()
        assert {r.key for r in tail.of(PAYMENTS, *everything)} == set(everything)
        assert not tail.of(DEAD_LETTERS, *everything)
        causes = {r.key: r.headers["causation-id"] for r in tail.of(PAYMENTS, twice, cloud)}
        assert causes == {twice: f"{twice}/last", cloud: f"{cloud}/1"}
        ledger = shop.provider.control.ledger()
        assert {order: ledger[order]["charges"] for order in everything} == dict.fromkeys(
            everything, 1
        )
        assert await worker.stop() == 0


def test_an_order_of_900_kb_is_charged_parked_and_dead_lettered_like_any_other(
    broker: Broker, tmp_path: Path
) -> None:
    asyncio.run(_send_large_ones(broker, tmp_path))


async def _send_large_ones(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, POLICY) as shop, Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
        worker = shop.worker()
        worker.start()
        await shop.warm_up(worker)
        well, passing, hopeless = (shop.key_in(PARTITION, "large") for _ in range(3))
        shop.provider.control.script(passing, {"status": 503})
        shop.provider.control.script(hopeless, {"status": 503}, forever=True)
        values = {order: placed(order, note="x" * 900_000) for order in (well, passing, hopeless)}
        for order, value in values.items():
            await shop.send(order, value, f"{order}/1")
            await shop.send(order, cancelled(order, note="y" * 900_000), f"{order}/2")
        await tail.until(PAYMENTS, 5, 30, *values)
        await until(shop.has_no_lag, 10, worker.tail)
        await tail.to_end()
        types = {o: [r.event["type"] for r in tail.of(PAYMENTS, o)] for o in values}
        both = ["PaymentCaptured", "PaymentRefunded"]
        assert types == {well: both, passing: both, hopeless: ["PaymentFailed"]}
        (letter,) = tail.of(DEAD_LETTERS)
        assert letter.event == values[hopeless]
        assert letter.headers["dlt-reason"] == "attempts-exhausted"
        assert "dlt-value-bytes" not in letter.headers
        assert await worker.stop() == 0


@pytest.mark.parametrize("kind", ["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_a_record_too_large_to_be_parked_or_kept_whole_stops_no_worker(
    start_broker: Callable[[str], Broker], tmp_path: Path, kind: str
) -> None:
    """Goal: 5 MB, more than our topics take: handled if it succeeds, else a shortened dead letter.

    Method: the source topic takes 8 MB. One order succeeds, one fails for a passing reason, one
    waits behind a parked head, one is no JSON. A healthy order behind them is charged.
    """
    asyncio.run(_send_oversized(start_broker(kind), tmp_path))


async def _send_oversized(broker: Broker, folder: Path) -> None:
    async with Shop(broker, folder, POLICY, partitions=2) as shop:
        await _let_in(shop, 8 << 20)
        async with Tail(shop, [PAYMENTS, DEAD_LETTERS]) as tail:
            worker = shop.worker()
            worker.start()
            await shop.warm_up(worker)
            note = "x" * 5_000_000
            well, failing, behind, broken = (shop.key_in(1, "large") for _ in range(4))
            control = shop.provider.control
            control.script(failing, {"status": 503}, forever=True)
            control.script(behind, {"status": 429, "retry_after": 3})
            where = {}
            await shop.send(well, placed(well, note=note), f"{well}/1")
            where[failing] = await shop.send(failing, placed(failing, note=note), f"{failing}/1")
            await shop.send(behind, placed(behind), f"{behind}/1")
            where[behind] = await shop.send(behind, cancelled(behind, note=note), f"{behind}/2")
            where[broken] = await shop.send(broken, b"{" + b"x" * 5_000_000, f"{broken}/1")
            healthy = shop.key_in(1, "healthy")
            await shop.send(healthy, placed(healthy), f"{healthy}/1")

            await tail.until(PAYMENTS, 4, 40, well, failing, behind, healthy)
            letters = {r.key: r for r in await tail.until(DEAD_LETTERS, 3, 20)}
            await until(shop.has_no_lag, 20, worker.tail)
            types = {r.key: r.event["type"] for r in tail.of(PAYMENTS, well, failing, behind)}
            assert types == {
                well: "PaymentCaptured",
                failing: "PaymentFailed",
                behind: "PaymentCaptured",
            }
            reasons = {
                key: (letter.headers["dlt-reason"], letter.headers["dlt-exception-type"])
                for key, letter in letters.items()
            }
            assert reasons == {
                failing: ("permanent", "RecordTooLargeError"),
                behind: ("permanent", "RecordTooLargeError"),
                broken: ("undecodable", "DecodeError"),
            }
            for key, at in where.items():
                letter = letters[key]
                whole = int(letter.headers["dlt-value-bytes"])
                assert whole > 5_000_000 > len(letter.value or b"") > 4_000_000
                assert position(letter) == f"{ORDERS} [[1]] @{at.offset}"
            assert worker.is_running()
            assert await worker.stop() == 0


async def _let_in(shop: Shop, bytes_max: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=shop.servers)
    await admin.start()
    try:
        resource = ConfigResource(
            ConfigResourceType.TOPIC, ORDERS, {"max.message.bytes": str(bytes_max)}
        )
        await admin.alter_configs([resource])
    finally:
        await admin.close()
