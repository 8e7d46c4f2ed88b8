"""The commands, with a broker that is a dictionary: what they print, send and refuse."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from bookstore_streams.cli import parked
from bookstore_streams.cli.commands import register
from bookstore_streams.cli.output import duration, moment, printable
from bookstore_streams.core.events import parse
from bookstore_streams.core.parking import Attempted, ParkedKey, message_key, parked_key
from bookstore_streams.core.record import pack
from bookstore_streams.errors import ConnectionLostError
from bookstore_streams.settings import Settings, WebSettings

NOW_MS = 1_800_000_000_000
PARKED = ParkedKey(
    head=3,
    tail=5,
    attempts=2,
    rounds=2,
    due_ms=NOW_MS + 90_500,
    cause="TransientError: 503",
    oldest_ms=NOW_MS - 7_200_000,
    history=(Attempted(NOW_MS - 5_000, 1, "m-3", "TransientError: 503"),),
)


class MemoryBroker:
    """Tables as they are, and what was sent; fails where it is told to."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[tuple[int, bytes], bytes]] = {
            "parked_keys": {},
            "parked_messages": {},
        }
        self.sent: list[tuple[str, bytes, bytes, list[tuple[str, bytes]]]] = []
        self.error: Exception | None = None
        self.before_read: Callable[[], None] = lambda: None
        self.reads = 0

    def park(self, key: str, state: ParkedKey = PARKED, consumer: str = "billing") -> None:
        row = json.dumps(state.to_row()).encode()
        self.tables["parked_keys"][1, parked_key(consumer, key)] = row
        for n in range(state.head, state.tail):
            self.park_message(key, n, consumer)

    def park_message(self, key: str, sequence: int, consumer: str = "billing") -> None:
        headers = [("message-id", f"m-{sequence}".encode())]
        record = pack("bookstore.orders", 1, 40 + sequence, NOW_MS, key.encode(), b"{}", headers)
        self.tables["parked_messages"][1, message_key(consumer, key, sequence)] = record

    async def read_tables(
        self,
        tables: Iterable[str],
        is_wanted: Callable[[str, bytes], bool],
        on_progress: Callable[[int, int], None],
    ) -> dict[str, dict[tuple[int, bytes], bytes]]:
        self.reads += 1
        self.before_read()
        if self.error is not None:
            raise self.error
        on_progress(1, 1)
        return {
            table: {
                where: row
                for where, row in self.tables[table].items()
                if is_wanted(table, where[1])
            }
            for table in tables
        }

    async def send(
        self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes]]
    ) -> tuple[int, int]:
        if self.error is not None:
            raise self.error
        self.sent.append((topic, key, value, headers))
        return 5, 41


@pytest.fixture(autouse=True)
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked, "_now_ms", lambda: NOW_MS)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


Run = Callable[..., Result]


@pytest.fixture
def run(broker: MemoryBroker) -> Run:
    @click.group()
    def group() -> None:
        """Stand in for Faust's."""

    settings = Settings(web=WebSettings(port=6067, token="hush"))
    register(group, settings, broker)
    register(group, settings, broker)  # as Faust's discovery may
    return lambda *args: CliRunner().invoke(group, args)


# -- parked -----------------------------------------------------------------------------------


def test_list_prints_the_bare_rows_the_earliest_due_first(run: Run, broker: MemoryBroker) -> None:
    broker.park("late", replace(PARKED, due_ms=NOW_MS + 100_000))
    broker.park("b")
    broker.park("a")
    broker.park("a", consumer="accounting")

    done = run("parked", "list", "--json")

    assert done.exit_code == 0
    rows = json.loads(done.stdout)
    assert [(row["consumer"], row["key"]) for row in rows] == [
        ("accounting", "a"),
        ("billing", "a"),
        ("billing", "b"),
        ("billing", "late"),
    ]
    assert rows[1] == {
        "consumer": "billing",
        "key": "a",
        "due_ms": PARKED.due_ms,
        "attempts": 2,
        "count": 2,
        "oldest_ms": PARKED.oldest_ms,
        "cause": "TransientError: 503",
        "state": "waiting",
    }


def test_list_shows_one_consumer_only_where_asked(run: Run, broker: MemoryBroker) -> None:
    broker.park("a", consumer="accounting")
    broker.park("b")

    rows = json.loads(run("parked", "list", "--consumer", "billing", "--json").stdout)

    assert [row["key"] for row in rows] == ["b"]


def test_list_tells_people_when_a_key_is_due_and_why_it_waits(
    run: Run, broker: MemoryBroker
) -> None:
    broker.park("order-1")

    line = run("parked", "list").stdout.splitlines()[1]

    words = "billing order-1 waiting in 1 min 2 2 2 h ago TransientError: 503"
    assert line.split() == words.split()


def test_an_empty_lot_is_done_and_not_a_failure(run: Run) -> None:
    assert run("parked", "list").stdout == "Nothing is parked.\n"
    assert run("parked", "list", "--json").stdout == "[]\n"
    assert run("parked", "list").exit_code == 0


def test_a_held_key_is_shown_as_held(run: Run, broker: MemoryBroker) -> None:
    broker.park("a", ParkedKey.from_row({**PARKED.to_row(), "state": "held"}))

    assert json.loads(run("parked", "list", "--json").stdout)[0]["state"] == "held"


@pytest.mark.parametrize("key", ["order-1", "a/b", "ä %2F", "..", "-"])
def test_show_prints_attempts_and_messages_in_order(
    run: Run, broker: MemoryBroker, key: str
) -> None:
    broker.park(key)
    broker.park(f"{key}0")

    done = run("parked", "show", key, "--json")

    document = json.loads(done.stdout)
    assert (document["key"], document["count"]) == (key, 2)
    assert document["history"][0]["message_id"] == "m-3"
    assert [(m["sequence"], m["message_id"]) for m in document["messages"]] == [
        (3, "m-3"),
        (4, "m-4"),
    ]
    assert document["messages"][0]["value"] == "{}"


def test_show_tells_people_the_same(run: Run, broker: MemoryBroker) -> None:
    broker.park("order-1")

    printed = run("parked", "show", "order-1").stdout

    for part in ("order-1", "5 s ago", "m-3", "m-4", "bookstore.orders [[1]] @44", "{}"):
        assert part in printed


def test_show_of_a_key_that_is_not_parked_fails_with_one_line(
    run: Run, broker: MemoryBroker
) -> None:
    broker.park("order-1", consumer="accounting")

    done = run("parked", "show", "order-1")

    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == "Error: Key order-1 of consumer billing is not parked.\n"
    assert run("parked", "show", "order-1", "--consumer", "accounting").exit_code == 0


def test_show_reads_again_where_a_commit_fell_between_key_and_messages(
    run: Run, broker: MemoryBroker
) -> None:
    broker.park("order-1")
    head = (1, message_key("billing", "order-1", 3))
    gone = broker.tables["parked_messages"].pop(head)

    def settle() -> None:
        if broker.reads == 2:
            broker.tables["parked_messages"][head] = gone

    broker.before_read = settle
    document = json.loads(run("parked", "show", "order-1", "--json").stdout)

    assert [m["sequence"] for m in document["messages"]] == [3, 4]
    assert broker.reads == 2


def test_a_key_that_was_sent_to_two_partitions_is_shown_as_it_is_in_one(
    run: Run, broker: MemoryBroker
) -> None:
    broker.park("order-1")
    for rows in broker.tables.values():
        rows.update({(6, row_key): row for (_, row_key), row in rows.items()})

    document = json.loads(run("parked", "show", "order-1", "--json").stdout)

    assert [m["sequence"] for m in document["messages"]] == [3, 4]


def test_a_message_of_an_unknown_format_hides_no_other(run: Run, broker: MemoryBroker) -> None:
    broker.park("order-1")
    broker.tables["parked_messages"][1, message_key("billing", "order-1", 3)] = b"\xff"

    done = run("parked", "show", "order-1", "--json")
    assert "error" in json.loads(done.stdout)["messages"][0]
    assert run("parked", "show", "order-1").exit_code == 0


# -- orders -----------------------------------------------------------------------------------

LINES = ("--line", "book-1:2:9.99", "--line", "a:b:1:0.5")
PLACE = ("orders", "place", "--customer", "c-1", "--currency", "EUR")


def test_place_sends_a_valid_event_under_its_order_id(run: Run, broker: MemoryBroker) -> None:
    at = "2026-11-30T10:00:00+01:00"
    options = ("--order-id", "ä/1", "--message-id", "m-1", "--placed-at", at, "--json")

    done = run(*PLACE, *LINES, *options)

    assert json.loads(done.stdout) == {
        "type": "OrderPlaced",
        "order_id": "ä/1",
        "message_id": "m-1",
        "topic": "bookstore.orders",
        "partition": 5,
        "offset": 41,
    }
    ((topic, key, value, headers),) = broker.sent
    assert (topic, key.decode(), headers) == ("bookstore.orders", "ä/1", [("message-id", b"m-1")])
    document = json.loads(value)
    assert document == {
        "type": "OrderPlaced",
        "order_id": "ä/1",
        "customer_id": "c-1",
        "currency": "EUR",
        "lines": [
            {"sku": "book-1", "quantity": 2, "unit_price": "9.99"},
            {"sku": "a:b", "quantity": 1, "unit_price": "0.5"},
        ],
        "placed_at": "2026-11-30T09:00:00.000Z",
    }
    parse(document)


def test_ids_and_time_are_made_up_where_none_are_given(run: Run, broker: MemoryBroker) -> None:
    for _ in range(2):
        assert run(*PLACE, *LINES).exit_code == 0

    ids = {key.decode() for _, key, _, _ in broker.sent}
    ids |= {headers[0][1].decode() for _, _, _, headers in broker.sent}
    assert len(ids) == 4
    assert all(uuid.UUID(each) for each in ids)
    parse(json.loads(broker.sent[0][2]))


def test_place_tells_people_where_the_message_is(run: Run) -> None:
    printed = run(*PLACE, *LINES, "--order-id", "o-1", "--message-id", "m-1").stdout

    assert printed == "OrderPlaced o-1 is message m-1, bookstore.orders [[5]] @41\n"


def test_cancel_sends_the_reason(run: Run, broker: MemoryBroker) -> None:
    done = run("orders", "cancel", "o-1", "--reason", "changed mind", "--json")

    assert json.loads(done.stdout)["type"] == "OrderCancelled"
    document = json.loads(broker.sent[0][2])
    assert (document["order_id"], document["reason"]) == ("o-1", "changed mind")


@pytest.mark.parametrize(
    "args",
    [
        (*PLACE, "--line", "a:0:1"),
        (*PLACE, "--line", "a:-1:1"),
        (*PLACE, "--line", "a:1:NaN"),
        (*PLACE, "--line", "a:1:0"),
        (*PLACE, "--line", ":1:1"),
        (*PLACE, *LINES, "--placed-at", "yesterday"),
        (*PLACE, *LINES, "--order-id", ""),
        (*PLACE, *LINES, "--message-id", ""),
        (*PLACE, *LINES, "--currency", "eur"),
        (*PLACE, *LINES, "--order-id", "\udcff"),
        ("orders", "cancel", "o-1", "--reason", ""),
        ("orders", "cancel", "", "--reason", "x"),
    ],
)
def test_an_event_that_breaks_its_schema_is_refused_before_anything_is_sent(
    run: Run, broker: MemoryBroker, args: tuple[str, ...]
) -> None:
    done = run(*args)

    assert (done.exit_code, done.stdout, broker.sent) == (1, "", [])
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "args",
    [
        PLACE,
        (*PLACE, "--line", "a"),
        (*PLACE, "--line", "a:1"),
        (*PLACE, "--line", "a:x:1"),
        ("orders", "place", *LINES),
        ("orders", "cancel"),
        ("orders", "cancel", "o-1"),
        ("orders", "burn"),
        ("parked", "show"),
        ("parked", "list", "--nonsense"),
        ("config", "show", "extra"),
    ],
)
def test_wrong_usage_ends_with_2(run: Run, args: tuple[str, ...]) -> None:
    done = run(*args)

    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage:" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("parked", "list"),
        ("parked", "show", "a"),
        ("orders", "cancel", "o-1", "--reason", "x"),
        (*PLACE, *LINES),
    ],
)
def test_a_broker_that_does_not_answer_ends_with_1_and_one_line(
    run: Run, broker: MemoryBroker, args: tuple[str, ...]
) -> None:
    broker.error = ConnectionLostError("No Kafka broker answers at nowhere:1.")

    done = run(*args)

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "Error: No Kafka broker answers at nowhere:1.\n"


# -- config -----------------------------------------------------------------------------------


def test_config_show_lists_every_setting_with_its_source(run: Run) -> None:
    rows: list[dict[str, Any]] = json.loads(run("config", "show", "--json").stdout)

    assert all(list(row) == ["name", "value", "source", "env"] for row in rows)
    by_name = {row["name"]: row for row in rows}
    assert by_name["web.port"]["value"] == 6067
    assert by_name["consumers.billing.jitter"]["env"] == "BOOKSTORE_BILLING_JITTER"
    assert by_name["broker.sasl_mechanism"]["value"] is None


def test_config_show_shows_no_secret(run: Run) -> None:
    for args in (("config", "show", "--json"), ("config", "show")):
        printed = run(*args).stdout
        assert "hush" not in printed
        assert "BOOKSTORE_WEB_TOKEN" in printed


def test_config_check_says_ok(run: Run) -> None:
    assert run("config", "check").stdout == "ok\n"
    assert json.loads(run("config", "check", "--json").stdout) == {"ok": True, "problems": []}


# -- words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (3_600_000, "1 h"),
        (86_400_000 * 3, "3 d"),
    ],
)
def test_a_duration_is_told_in_its_largest_unit(ms: int, words: str) -> None:
    assert duration(ms) == words


def test_a_moment_is_told_from_now() -> None:
    assert moment(13_000, 1_000) == "in 12 s"
    assert moment(1_000, 61_000) == "1 min ago"
    assert moment(1_500, 1_000) == "now"


def test_what_a_producer_sent_cannot_steer_a_terminal(run: Run, broker: MemoryBroker) -> None:
    broker.park("\x1b[2Jgone\r\n\u202e[red]x")

    printed = run("parked", "list").stdout

    assert r"\x1b[2Jgone\r\n\u202e[red]x" in printed
    assert printable("ä 日本 \N{PILE OF POO}") == "ä 日本 \N{PILE OF POO}"
