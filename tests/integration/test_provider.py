"""The payment client against the scriptable provider, over real sockets.

Every behaviour of the provider is shown through the real client, and every verdict of the
client through a provider that really misbehaves. Nothing here sleeps: a test waits for an
answer, or for the provider to say that a call ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bookstore_streams.errors import LeaseLostError, PermanentError, TransientError
from bookstore_streams.providers.payment import PaymentProvider
from bookstore_streams.testing.provider import (
    Provider,
    ProviderControl,
    running_provider,
    start_provider_process,
)

ROOT = Path(__file__).resolve().parents[2]
# Longer than any answer takes on a busy machine, shorter than the patience of a test run.
PATIENCE_S = 60.0
TIMEOUT_MS = 20_000
SHORT_TIMEOUT_MS = 400


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test

    asyncio.run(bounded())


@asynccontextmanager
async def client_of(
    url: str, timeout_ms: int = TIMEOUT_MS, connections_max: int = 10
) -> AsyncIterator[PaymentProvider]:
    client = PaymentProvider(url, timeout_ms, connections_max)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def pair(
    timeout_ms: int = TIMEOUT_MS, connections_max: int = 10
) -> AsyncIterator[tuple[Provider, PaymentProvider]]:
    async with (
        running_provider() as provider,
        client_of(provider.url, timeout_ms, connections_max) as client,
    ):
        yield provider, client


async def failure_of(call: Awaitable[None]) -> TransientError | PermanentError:
    try:
        await call
    except (TransientError, PermanentError) as error:
        return error
    raise AssertionError("the call succeeded")


def results(provider: Provider) -> list[str]:
    return [call.result for call in provider.calls]


async def posted(
    url: str, body: object, key: str | None = "k", path: str = "/charges"
) -> tuple[int, dict[str, Any]]:
    """A money call as another program might send it."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {} if key is None else {"Idempotency-Key": key}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, data=content, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


ORDER = {"order_id": "A", "amount": "12.50", "currency": "EUR"}


# Booking


def test_a_charge_and_a_refund_are_booked_once_each():
    async def test():
        async with pair() as (provider, client):
            await client.charge("A", "12.50", "EUR")
            await client.refund("A", "12.50", "EUR")
            account = provider.ledger.account("A")
            assert account.as_json() == {
                "charged": "12.50",
                "charges": 1,
                "refunded": "12.50",
                "refunds": 1,
                "currency": "EUR",
                "calls": 2,
            }
            assert [call.key for call in provider.calls] == ["A:charge", "A:refund"]
            assert results(provider) == ["booked", "booked"]

    run(test())


def test_a_repeated_charge_is_answered_alike_and_books_nothing():
    async def test():
        async with pair() as (provider, client):
            first = await posted(provider.url, ORDER, "A:charge")
            assert first[0] == 201
            assert await posted(provider.url, ORDER, "A:charge") == first
            await client.charge("A", "12.50", "EUR")
            assert results(provider) == ["booked", "replayed", "replayed"]
            assert provider.ledger.account("A").charges == 1

    run(test())


@pytest.mark.parametrize(
    ("amount", "currency"), [("12.51", "EUR"), ("12.5", "EUR"), ("12.50", "USD")]
)
def test_the_same_key_with_another_body_is_refused(amount, currency):
    async def test():
        async with pair() as (provider, client):
            await client.charge("A", "12.50", "EUR")
            error = await failure_of(client.charge("A", amount, currency))
            assert isinstance(error, PermanentError)
            assert "answered 422 to POST /charges for order A: " in str(error)
            assert "another body" in str(error)
            assert results(provider) == ["booked", "rejected:422"]
            assert str(provider.ledger.account("A").charged) == "12.50"

    run(test())


def test_the_same_key_for_another_operation_is_refused():
    async def test():
        async with running_provider() as provider:
            assert (await posted(provider.url, ORDER, "k"))[0] == 201
            assert (await posted(provider.url, ORDER, "k", "/refunds"))[0] == 422

    run(test())


def test_a_failure_is_not_remembered_under_its_key():
    async def test():
        async with pair() as (provider, client):
            provider.script("A", {"status": 503}, {"status": 402})
            assert isinstance(await failure_of(client.charge("A", "1", "EUR")), TransientError)
            assert isinstance(await failure_of(client.charge("A", "1", "EUR")), PermanentError)
            await client.charge("A", "1", "EUR")
            assert results(provider) == ["failed:503", "failed:402", "booked"]

    run(test())


@pytest.mark.parametrize(
    "order_id",
    ["bücher-1", "本 😀", "a/b?c#d", "%41", " padded ", "line\r\nX-Evil: 1", "\x00", "q" * 1_000],
)
def test_any_order_id_can_be_charged_and_looked_up(order_id):
    async def test():
        async with pair() as (provider, client):
            await client.charge(order_id, "1.00", "EUR")
            await client.charge(order_id, "1.00", "EUR")
            assert results(provider) == ["booked", "replayed"]
            assert provider.calls[0].order_id == order_id
            control = ProviderControl(provider.url)
            account = await asyncio.to_thread(control.account, order_id)
            assert account["charged"] == "1.00"

    run(test())


def test_orders_whose_encoded_ids_look_alike_are_charged_apart():
    async def test():
        async with pair() as (provider, client):
            for order_id in ("é", "%C3%A9", " é", "x", " x"):
                await client.charge(order_id, "1", "EUR")
            assert results(provider) == ["booked"] * 5

    run(test())


def test_an_order_id_too_long_for_a_header_fails_for_good_without_a_call():
    async def test():
        async with pair() as (provider, client):
            error = await failure_of(client.charge("x" * 900_000, "1", "EUR"))
            assert isinstance(error, PermanentError)
            assert "was not sent" in str(error)
            assert len(str(error)) < 400
            assert provider.calls == []

    run(test())


@pytest.mark.parametrize(
    ("amount", "currency", "why"),
    [
        ("12.50", "XXX", "invalid currency"),
        ("12.50", "eur", "invalid currency"),
        ("0", "EUR", "not above zero"),
        ("0.00", "EUR", "not above zero"),
        ("-1", "EUR", "no decimal"),
        ("NaN", "EUR", "no decimal"),
        ("Infinity", "EUR", "no decimal"),
        ("1e3", "EUR", "no decimal"),
        ("١", "EUR", "no decimal"),
        ("1,50", "EUR", "no decimal"),
        ("9" * 41, "EUR", "no decimal"),
    ],
)
def test_money_that_no_bank_takes_fails_for_good_with_the_reason(amount, currency, why):
    async def test():
        async with pair() as (provider, client):
            error = await failure_of(client.charge("A", amount, currency))
            assert isinstance(error, PermanentError)
            assert "answered 422 to POST /charges for order A" in str(error)
            assert why in str(error)
            assert results(provider) == ["rejected:422"]

    run(test())


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b"", "k"),
        (b"{", "k"),
        (b"\xff", "k"),
        (b'{"order_id": "A", "amount": NaN, "currency": "EUR"}', "k"),
        ([], "k"),
        ({**ORDER, "order_id": ""}, "k"),
        ({**ORDER, "order_id": 7}, "k"),
        ({**ORDER, "amount": 12.5}, "k"),
        ({**ORDER, "currency": None}, "k"),
        ({"order_id": "A"}, "k"),
        (ORDER, None),
        (ORDER, ""),
    ],
)
def test_a_request_that_is_none_is_answered_with_400_and_noted(body, key):
    async def test():
        async with running_provider() as provider:
            status, answer = await posted(provider.url, body, key)
            assert status == 400
            assert answer["error"]
            assert results(provider) == ["rejected:400"]
            assert not any(account.charges for account in provider.ledger.accounts.values())

    run(test())


def test_sums_of_many_digits_stay_exact():
    async def test():
        async with running_provider() as provider:
            for key, amount in (("1", "9" * 30 + ".00001"), ("2", "0.00002")):
                assert (await posted(provider.url, {**ORDER, "amount": amount}, key))[0] == 201
            account = provider.ledger.account("A").as_json()
            assert account["charged"] == "9" * 30 + ".00003"
            assert account["charges"] == 2

    run(test())


# What the client makes of an answer


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 599])
def test_statuses_that_pass_are_transient(status):
    async def test():
        async with pair() as (provider, client):
            provider.script("4711", {"status": status})
            error = await failure_of(client.charge("4711", "1", "EUR"))
            assert isinstance(error, TransientError)
            assert error.retry_after_ms is None
            expected = f"payment provider answered {status} to POST /charges for order 4711"
            assert str(error) == expected

    run(test())


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 409, 410, 422, 425, 451, 499])
def test_other_client_errors_are_permanent_and_say_what_the_body_says(status):
    async def test():
        async with pair() as (provider, client):
            provider.script("4711", {"status": status, "body": {"error": "card declined"}})
            error = await failure_of(client.refund("4711", "1", "EUR"))
            assert isinstance(error, PermanentError)
            assert str(error) == (
                f"payment provider answered {status} to POST /refunds for order 4711:"
                ' {"error":"card declined"}'
            )

    run(test())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 304])
def test_redirects_are_permanent_and_not_followed(status):
    async def test():
        async with pair() as (provider, client):
            provider.script("A", {"status": status})
            error = await failure_of(client.charge("A", "1", "EUR"))
            assert isinstance(error, PermanentError)
            assert f"answered {status} to POST /charges for order A, a redirect" in str(error)
            # The redirect leads to where a second call would book.
            assert results(provider) == [f"failed:{status}"]

    run(test())


def test_a_retry_after_in_seconds_reaches_the_error_and_its_text():
    async def test():
        async with pair() as (provider, client):
            provider.script("4711", {"status": 503, "retry_after": 2}, {"status": 429})
            error = await failure_of(client.charge("4711", "1", "EUR"))
            assert isinstance(error, TransientError)
            assert error.retry_after_ms == 2_000
            assert str(error) == (
                "payment provider answered 503 to POST /charges for order 4711, retry after 2 s"
            )
            error = await failure_of(client.charge("4711", "1", "EUR"))
            assert isinstance(error, TransientError)
            assert error.retry_after_ms is None

    run(test())


def test_a_retry_after_as_a_date_counts_from_now_and_garbage_is_ignored():
    async def test():
        async with pair() as (provider, client):
            date = formatdate(time.time() + 3_600, usegmt=True)
            provider.script(
                "A",
                {"status": 429, "retry_after": date},
                {"status": 429, "retry_after": "next week"},
                {"status": 429, "retry_after": 10**9},
            )
            waits = []
            for _ in range(3):
                error = await failure_of(client.charge("A", "1", "EUR"))
                assert isinstance(error, TransientError)
                waits.append(error.retry_after_ms)
            assert waits[0] is not None
            assert 3_600_000 - PATIENCE_S * 1_000 < waits[0] <= 3_600_000
            assert waits[1:] == [None, 24 * 60 * 60 * 1_000]

    run(test())


def test_a_long_or_ugly_body_is_shown_short_and_on_one_line():
    async def test():
        async with pair() as (provider, client):
            provider.script(
                "A",
                {"status": 402, "body": "x" * 5_000_000},
                {"status": 402, "body": "a\nb\x1b[31m\u2028c\x00"},
                {"status": 402, "body": ""},
            )
            messages = [str(await failure_of(client.charge("A", "1", "EUR"))) for _ in range(3)]
            prefix = "payment provider answered 402 to POST /charges for order A"
            assert messages[0] == f"{prefix}: {'x' * 197}..."
            assert messages[1] == f"{prefix}: a b [31m c"
            assert messages[2] == prefix

    run(test())


def test_an_ugly_order_id_is_shown_short_and_on_one_line():
    async def test():
        async with pair() as (provider, client):
            order_id = "a\nb" + "c" * 500
            provider.script(order_id, {"status": 503})
            message = str(await failure_of(client.charge(order_id, "1", "EUR")))
            assert message.endswith(f"for order a b{'c' * 74}...")

    run(test())


def test_no_answer_in_time_is_transient_and_the_provider_may_have_booked():
    async def test():
        async with pair(timeout_ms=SHORT_TIMEOUT_MS) as (provider, client):
            provider.script("A", {"timeout": True}, {"charge_then_timeout": True})
            for _ in range(2):
                error = await failure_of(client.charge("A", "1", "EUR"))
                assert isinstance(error, TransientError)
                assert f"did not answer POST /charges for order A within {SHORT_TIMEOUT_MS} ms" in (
                    str(error)
                )
            # Both calls are known; only the second moved money, and the third moves none.
            async with client_of(provider.url) as patient:
                await patient.charge("A", "1", "EUR")
            assert results(provider) == ["timeout", "timeout", "replayed"]
            assert [call.booked for call in provider.calls] == [False, True, False]
            assert provider.ledger.account("A").charges == 1

    run(test())


def test_a_reset_connection_is_transient():
    async def test():
        async with pair() as (provider, client):
            await client.charge("warm", "1", "EUR")
            provider.script("A", {"reset": True}, {"reset": True})
            for _ in range(2):
                error = await failure_of(client.charge("A", "1", "EUR"))
                assert isinstance(error, TransientError)
                assert "broke the connection during POST /charges for order A" in str(error)
            await client.charge("A", "1", "EUR")
            assert results(provider) == ["booked", "reset", "reset", "booked"]

    run(test())


def test_a_reset_is_a_reset_on_the_wire():
    async def test():
        async with running_provider() as provider:
            provider.script("A", {"reset": True})
            host, port = provider.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps(ORDER).encode()
            head = "POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    run(test())


def test_a_charge_whose_answer_was_lost_is_not_charged_again():
    async def test():
        async with pair() as (provider, client):
            provider.script("A", {"charge_then_reset": True}, {"charge_then_reset": True})
            for _ in range(2):
                error = await failure_of(client.charge("A", "1", "EUR"))
                assert isinstance(error, TransientError)
            await client.charge("A", "1", "EUR")
            assert results(provider) == ["reset", "reset", "replayed"]
            assert [call.booked for call in provider.calls] == [True, False, False]
            assert provider.ledger.account("A").charges == 1

    run(test())


@pytest.mark.parametrize("step", ["garbage", "truncated"])
def test_a_broken_reply_is_transient_and_not_quoted(step):
    async def test():
        async with pair() as (provider, client):
            provider.script("A", {step: True})
            error = await failure_of(client.charge("A", "1", "EUR"))
            assert isinstance(error, TransientError)
            assert "gave POST /charges for order A an answer that cannot be read" in str(error)
            assert "this is no HTTP" not in str(error)
            await client.charge("A", "1", "EUR")
            assert results(provider) == [step, "booked"]

    run(test())


def test_a_closed_port_is_transient_and_named():
    async def test():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            # No proxy, no redirect: a path below the base is kept, its slash is not.
            async with client_of(f"http://user:secret@127.0.0.1:{port}/v1/") as client:
                error = await failure_of(client.charge("A", "1", "EUR"))
        assert isinstance(error, TransientError)
        assert str(error).startswith(
            f"payment provider at 127.0.0.1:{port} cannot be reached:"
            " POST /v1/charges for order A was not sent ("
        )
        assert "secret" not in str(error)

    run(test())


def test_a_host_without_an_address_is_transient():
    async def test():
        async with client_of("http://provider.invalid:80") as client:
            error = await failure_of(client.charge("A", "1", "EUR"))
        assert isinstance(error, TransientError)
        assert "payment provider at provider.invalid:80 cannot be reached" in str(error)

    run(test())


def test_a_slow_answer_within_the_timeout_is_done():
    async def test():
        async with pair() as (provider, client):
            provider.script("A", {"delay_ms": 60})
            started = time.monotonic()
            await client.charge("A", "1", "EUR")
            assert time.monotonic() - started >= 0.059
            (call,) = provider.calls
            assert call.result == "booked"
            assert call.done_ms is not None
            assert call.done_ms - call.at_ms >= 59

    run(test())


def test_a_provider_at_work_books_though_its_caller_has_given_up():
    async def test():
        async with pair(timeout_ms=SHORT_TIMEOUT_MS) as (provider, client):
            provider.script("A", {"delay_ms": 3 * SHORT_TIMEOUT_MS})
            assert isinstance(await failure_of(client.charge("A", "1", "EUR")), TransientError)
            assert results(provider) == ["pending"]
            await provider.until(lambda: provider.ledger.account("A").charges == 1)
            async with client_of(provider.url) as patient:
                await patient.charge("A", "1", "EUR")
            assert results(provider) == ["booked", "replayed"]

    run(test())


def test_a_call_that_hangs_is_forgotten_when_its_caller_leaves():
    async def test():
        async with running_provider() as provider:
            provider.default({"timeout": True}, forever=True)
            tasks = len(asyncio.all_tasks())
            async with client_of(provider.url) as client:
                calls = [asyncio.create_task(client.charge(str(n), "1", "EUR")) for n in range(5)]
                await provider.until(lambda: results(provider) == ["timeout"] * 5)
            await asyncio.wait(calls)
            for _ in range(1_000):
                await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) == tasks
            assert all(isinstance(call.exception(), TransientError) for call in calls)

    run(test())


def test_two_calls_of_one_key_at_once_book_once():
    async def test():
        async with pair() as (provider, client):
            provider.script("A", {"delay_ms": 50}, {"delay_ms": 10})
            await asyncio.gather(client.charge("A", "1", "EUR"), client.charge("A", "1", "EUR"))
            assert sorted(results(provider)) == ["booked", "replayed"]
            assert provider.ledger.account("A").charges == 1

    run(test())


# The lease check, the number of connections, the end


def test_the_lease_is_checked_before_each_request_and_its_error_passes_unchanged():
    async def test():
        async with pair() as (provider, client):
            seen = []
            await client.charge("A", "1", "EUR", before_call=lambda: seen.append("asked"))
            assert seen == ["asked"]

            def lost() -> None:
                raise LeaseLostError("the lease ended 3 s ago")

            for call in (client.charge, client.refund):
                with pytest.raises(LeaseLostError, match="3 s ago"):
                    await call("B", "1", "EUR", before_call=lost)
            assert results(provider) == ["booked"]

    run(test())


def test_a_call_that_waits_for_a_connection_asks_for_the_lease_after_the_wait():
    async def test():
        async with pair(connections_max=1) as (provider, client):
            provider.script("slow", {"delay_ms": 50})
            finished_before_ask = []
            slow = asyncio.create_task(client.charge("slow", "1", "EUR"))
            await asyncio.sleep(0)
            await client.charge(
                "B", "1", "EUR", before_call=lambda: finished_before_ask.extend(results(provider))
            )
            await slow
            assert finished_before_ask == ["booked"]

    run(test())


def test_no_more_calls_are_on_the_wire_than_connections():
    async def test():
        async with pair(connections_max=3) as (provider, client):
            provider.default(delay_ms=20)
            await asyncio.gather(*(client.charge(str(n), "1", "EUR") for n in range(12)))
            spans = [(call.at_ms, call.done_ms or 0) for call in provider.calls]
            assert len(spans) == 12
            for at_ms, _ in spans:
                assert sum(start <= at_ms < end for start, end in spans) <= 3

    run(test())


def test_waiting_for_a_connection_does_not_count_towards_the_timeout():
    async def test():
        async with pair(timeout_ms=1_500, connections_max=1) as (provider, client):
            provider.default(delay_ms=400)
            await asyncio.gather(*(client.charge(str(n), "1", "EUR") for n in range(5)))
            assert results(provider) == ["booked"] * 5

    run(test())


def test_one_connection_serves_call_after_call_failures_too():
    async def test():
        replies = [reply(503, b"x" * 100), reply(402, b"x" * 20_000), reply(201, b"{}"), reply(204)]
        async with (
            raw_server(replies) as server,
            client_of(server.url, connections_max=1) as client,
        ):
            for _ in range(2):
                await failure_of(client.charge("A", "1", "EUR"))
            for _ in range(2):
                await client.charge("A", "1", "EUR")
            assert server.connections == 1

    run(test())


def test_closing_fails_the_call_in_flight_and_a_later_call_opens_again():
    async def test():
        async with pair() as (provider, client):
            provider.script("A", {"timeout": True})
            call = asyncio.create_task(client.charge("A", "1", "EUR"))
            await provider.until(lambda: results(provider) == ["timeout"])
            await client.close()
            await client.close()
            assert isinstance(await failure_of(call), TransientError)
            await client.charge("A", "1", "EUR")
            assert results(provider) == ["timeout", "booked"]

    run(test())


def test_a_cancelled_call_gives_its_connection_back():
    async def test():
        async with pair(connections_max=1) as (provider, client):
            provider.script("A", {"timeout": True})
            call = asyncio.create_task(client.charge("A", "1", "EUR"))
            await provider.until(lambda: results(provider) == ["timeout"])
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await client.charge("B", "1", "EUR")

    run(test())


def test_the_client_keeps_no_cookies_and_asks_for_no_compression():
    async def test():
        replies = [reply(201, b"{}", b"Set-Cookie: a=b\r\n"), reply(201, b"{}")]
        async with raw_server(replies) as server, client_of(server.url) as client:
            await client.charge("A", "1", "EUR")
            await client.charge("A", "1", "EUR")
            assert len(server.heads) == 2
            for head in server.heads:
                assert "cookie:" not in head
                assert "accept-encoding: identity" in head
                assert "idempotency-key: a:charge" in head

    run(test())


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"no json"), (202, b""), (204, b""), (299, b"x" * 2_000_000)]
)
def test_any_success_is_done_whatever_its_body(status, body):
    async def test():
        async with raw_server([reply(status, body)]) as server, client_of(server.url) as client:
            await client.charge("A", "1", "EUR")

    run(test())


def test_the_body_of_a_success_never_reaches_an_error():
    async def test():
        broken = reply(200, b"card 4111").replace(b"Length: 9", b"Length: 99")
        async with raw_server([broken]) as server, client_of(server.url) as client:
            error = await failure_of(client.charge("A", "1", "EUR"))
            assert isinstance(error, TransientError)
            assert "4111" not in str(error)

    run(test())


class RawServer:
    """Sends prepared bytes, one reply per request, and notes what came."""

    def __init__(self, replies: list[bytes]) -> None:
        self.url = ""
        self.connections = 0
        self.heads: list[str] = []
        self._replies = replies

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self._replies:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                self.heads.append(head)
                await reader.readexactly(int(head.split("content-length: ")[1].split()[0]))
                writer.write(self._replies.pop(0))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(replies: list[bytes]) -> AsyncIterator[RawServer]:
    served = RawServer(replies)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    async with server:
        served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield served


def reply(status: int, body: bytes = b"", headers: bytes = b"") -> bytes:
    length = b"" if status == 204 else b"Content-Length: %d\r\n" % len(body)
    return b"HTTP/1.1 %d Said\r\n%s%s\r\n%s" % (status, length, headers, body)


# Scripts of the whole provider


def test_a_provider_that_is_down_answers_nobody_until_told_otherwise():
    async def test():
        async with pair() as (provider, client):
            provider.script("A", {"status": 500})
            await provider.down(status=503, retry_after=1)
            for order_id in ("A", "B"):
                error = await failure_of(client.charge(order_id, "1", "EUR"))
                assert isinstance(error, TransientError)
                assert error.retry_after_ms == 1_000
            await provider.up()
            # The down time used up no step of A's own script.
            error = await failure_of(client.charge("A", "1", "EUR"))
            assert "answered 500" in str(error)
            await client.charge("B", "1", "EUR")

    run(test())


def test_a_down_time_ends_by_itself():
    async def test():
        async with pair() as (provider, client):
            began = provider_ms()
            await provider.down(for_ms=200)
            await until_charged(client, "A")
            assert provider.calls[-1].at_ms >= began + 200
            assert results(provider) == ["failed:503"] * (len(provider.calls) - 1) + ["booked"]

    run(test())


def test_a_down_time_to_come_begins_by_itself():
    async def test():
        async with pair() as (provider, client):
            began = provider_ms()
            await provider.down(from_ms=100, status=429)
            error: TransientError | PermanentError | None = None
            while error is None:
                try:
                    await client.charge("A", "1", "EUR")
                except TransientError as found:
                    error = found
            assert "answered 429" in str(error)
            assert provider.calls[-1].at_ms >= began + 100

    run(test())


def test_a_refusing_provider_closes_its_port_and_opens_it_again_by_itself():
    async def test():
        async with pair() as (provider, client):
            await client.charge("warm", "1", "EUR")
            await provider.down(status="refuse", for_ms=1_000)
            # The connection that was open is reset, a new one is refused.
            error = await failure_of(client.charge("A", "1", "EUR"))
            assert "broke the connection" in str(error)
            error = await failure_of(client.charge("A", "1", "EUR"))
            assert isinstance(error, TransientError)
            assert "cannot be reached" in str(error)
            await until_charged(client, "A")
            assert results(provider)[:2] == ["booked", "reset"]
            assert provider.ledger.account("A").charges == 1

    run(test())


def test_a_refusal_can_be_announced_and_lifted():
    async def test():
        async with pair() as (provider, client):
            await provider.down(status="refuse", from_ms=50, for_ms=3_600_000)
            error: TransientError | PermanentError | None = None
            while error is None or "cannot be reached" not in str(error):
                try:
                    await client.charge("A", "1", "EUR")
                except TransientError as found:
                    error = found
            await provider.up()
            await client.charge("B", "1", "EUR")

    run(test())


def test_the_default_holds_for_orders_without_a_script():
    async def test():
        async with pair() as (provider, client):
            provider.default({"status": 503}, delay_ms=5)
            provider.script("S")
            await client.charge("S", "1", "EUR")
            for order_id in ("A", "B"):
                assert isinstance(
                    await failure_of(client.charge(order_id, "1", "EUR")), TransientError
                )
                await client.charge(order_id, "1", "EUR")
            assert results(provider) == ["booked", *["failed:503", "booked"] * 2]

    run(test())


def test_random_failures_over_http_are_those_of_the_seed():
    async def test():
        async with pair() as (provider, client):
            modes = ["503", "reset", "charge_then_reset", {"status": 429, "retry_after": 1}]

            async def charged() -> dict[str, list[str]]:
                provider.random(seed=7, fail_share=0.5, modes=modes, attempts_max=3)
                await asyncio.gather(*(until_charged(client, f"order-{n}") for n in range(40)))
                seen: dict[str, list[str]] = {}
                for call in provider.calls:
                    seen.setdefault(call.order_id, []).append(call.result)
                for account in provider.ledger.accounts.values():
                    assert account.charges == 1
                await provider.reset(ledger=True)
                return seen

            first = await charged()
            assert await charged() == first
            assert {len(calls) for calls in first.values()} == {1, 2, 3, 4}

    run(test())


def test_reset_drops_scripts_and_only_on_request_the_ledger():
    async def test():
        async with pair() as (provider, client):
            await client.charge("A", "1", "EUR")
            provider.script("A", {"status": 503}, forever=True)
            provider.default({"status": 503}, forever=True)
            await provider.down()
            await provider.reset()
            await client.charge("A", "1", "EUR")
            assert results(provider) == ["booked", "replayed"]
            await provider.reset(ledger=True)
            assert provider.calls == []
            await client.charge("A", "1", "EUR")
            assert results(provider) == ["booked"]

    run(test())


async def until_charged(client: PaymentProvider, order_id: str) -> None:
    while True:
        try:
            return await client.charge(order_id, "1", "EUR")
        except TransientError:
            continue


def provider_ms() -> int:
    return time.time_ns() // 1_000_000


# The provider as a process, steered over HTTP


def charge_outcomes(url: str, order_ids: list[str], operation: str = "charge") -> list[str]:
    """Calls one after another; "ok", or the name of the error."""

    async def calls() -> list[str]:
        outcomes = []
        async with client_of(url) as client:
            for order_id in order_ids:
                call = client.charge if operation == "charge" else client.refund
                try:
                    await call(order_id, "12.50", "EUR")
                    outcomes.append("ok")
                except (TransientError, PermanentError) as error:
                    outcomes.append(type(error).__name__)
        return outcomes

    return asyncio.run(calls())


def test_a_provider_process_is_steered_over_http():
    with start_provider_process() as provider:
        control = provider.control
        assert provider.url.startswith("http://127.0.0.1:")
        control.script("A", {"status": 503, "retry_after": 2}, {"status": 402})
        control.script_all(
            [
                {"order_id": "B", "steps": [{"status": 500}], "forever": True},
                {"order_id": "C", "operation": "refund", "steps": [{"status": 429}]},
            ]
        )
        assert charge_outcomes(provider.url, ["A", "A", "A"]) == [
            "TransientError",
            "PermanentError",
            "ok",
        ]
        assert charge_outcomes(provider.url, ["B", "B", "C"]) == ["TransientError"] * 2 + ["ok"]
        assert charge_outcomes(provider.url, ["C", "C"], "refund") == ["TransientError", "ok"]
        assert control.account("A") == {
            "charged": "12.50",
            "charges": 1,
            "refunded": "0",
            "refunds": 0,
            "currency": "EUR",
            "calls": 3,
        }
        assert control.account("never heard of")["charges"] == 0
        assert {order: account["charges"] for order, account in control.ledger().items()} == {
            "A": 1,
            "B": 0,
            "C": 1,
        }
        calls = control.calls()
        assert [call["seq"] for call in calls] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert (
            calls[0].items()
            >= {
                "order_id": "A",
                "operation": "charge",
                "key": "A:charge",
                "amount": "12.50",
                "currency": "EUR",
                "result": "failed:503",
                "booked": False,
            }.items()
        )
        assert [call["at_ms"] for call in calls] == sorted(call["at_ms"] for call in calls)
        assert [call["seq"] for call in control.calls(since=6)] == [7, 8]

        control.down(status=503)
        assert charge_outcomes(provider.url, ["D"]) == ["TransientError"]
        control.up()
        control.default({"status": 503})
        assert charge_outcomes(provider.url, ["E", "E"]) == ["TransientError", "ok"]
        control.random(seed=7, fail_share=1, modes=["402"], attempts_max=1)
        assert charge_outcomes(provider.url, ["F", "F"]) == ["PermanentError", "ok"]
        control.reset()
        assert charge_outcomes(provider.url, ["B", "G"]) == ["ok", "ok"]
        control.reset(ledger=True)
        assert control.calls() == []
        assert control.ledger() == {}
        assert provider.stop() == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/_script", b""),
        ("/_script", b"{"),
        ("/_script", b"7"),
        ("/_script", b'[{"order_id": "A", "steps": [{"status": 503}]}, {"order_id": ""}]'),
        ("/_script/default", b'{"delay_ms": "long"}'),
        ("/_script/default", b'{"self": 1}'),
        ("/_script/random", b'{"self": 1}'),
        ("/_script/random", b"[]"),
        ("/_script/down", b'{"status": "refuse"}'),
        ("/_script/down", b'{"self": 1}'),
    ],
)
def test_a_wrong_script_is_answered_with_400_and_nothing_of_it_holds(path, body):
    async def test():
        async with pair() as (provider, client):
            status, answer = await posted(provider.url, body, path=path)
            assert status == 400
            assert answer["error"]
            await client.charge("A", "1", "EUR")
            assert results(provider) == ["booked"]

    run(test())


def test_a_wrong_position_in_the_calls_is_answered_with_400():
    async def test():
        async with running_provider() as provider:
            control = ProviderControl(provider.url)
            with pytest.raises(ValueError, match="`since` must be"):
                await asyncio.to_thread(control._ask, "GET", "/_calls?since=x")

    run(test())


def test_a_restarted_provider_still_knows_what_it_booked(tmp_path):
    file = tmp_path / "ledger.jsonl"
    with start_provider_process(ledger_file=file) as provider:
        provider.control.script("B", {"charge_then_reset": True})
        assert charge_outcomes(provider.url, ["A", "B"]) == ["ok", "TransientError"]
        provider.kill()
    with start_provider_process(ledger_file=file) as provider:
        assert charge_outcomes(provider.url, ["A", "B", "C"]) == ["ok", "ok", "ok"]
        calls = provider.control.calls()
        assert [(call["seq"], call["result"], call["booked"]) for call in calls] == [
            (1, "booked", True),
            (2, "reset", True),
            (3, "replayed", False),
            (4, "replayed", False),
            (5, "booked", True),
        ]
        assert {order: row["charges"] for order, row in provider.control.ledger().items()} == {
            "A": 1,
            "B": 1,
            "C": 1,
        }
        assert provider.stop() == 0
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    assert lines == calls


def test_a_line_torn_by_a_crash_is_dropped_and_the_file_goes_on(tmp_path):
    file = tmp_path / "ledger.jsonl"

    async def test(expected: list[str]) -> None:
        async with (
            running_provider(ledger_file=file) as provider,
            client_of(provider.url) as client,
        ):
            await client.charge("A", "1", "EUR")
            await client.charge("B", "1", "EUR")
            assert results(provider) == expected

    run(test(["booked", "booked"]))
    file.write_bytes(file.read_bytes()[:-20])
    run(test(["booked", "replayed", "booked"]))
    run(test(["booked", "replayed", "booked", "replayed", "replayed"]))


def test_a_cleared_ledger_is_empty_after_a_restart_too(tmp_path):
    file = tmp_path / "ledger.jsonl"

    async def test() -> None:
        async with (
            running_provider(ledger_file=file) as provider,
            client_of(provider.url) as client,
        ):
            assert provider.calls == []
            await client.charge("A", "1", "EUR")
            await provider.reset(ledger=True)

    run(test())
    run(test())


def wait_for_calls(control: ProviderControl, count: int) -> None:
    while len(control.calls()) < count:
        pass


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bookstore_streams.testing.provider", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_a_port_in_use_is_one_clear_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = started("--port", str(port))
        assert ended.returncode == 1
        assert ended.stdout == ""
        assert ended.stderr == (
            f"cannot listen on port {port} of 127.0.0.1: it is in use; choose another with --port\n"
        )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{}\n", "line 1 is no call of a ledger"),
        (b"no json\n", "line 1 is no call of a ledger"),
        (None, "cannot keep the ledger in"),
    ],
)
def test_a_ledger_that_is_none_is_one_clear_line(tmp_path, content, why):
    file = tmp_path / "there" / "ledger.jsonl"
    if content is not None:
        file.parent.mkdir()
        file.write_bytes(content)
    ended = started("--port", "0", "--ledger", str(file))
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert why in ended.stderr
    assert str(file) in ended.stderr


def test_a_port_that_is_none_is_wrong_usage():
    assert started("--port", "65536").returncode == 2


def test_a_provider_that_does_not_start_is_reported():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RuntimeError, match="exit code 1"):
            start_provider_process(taken.getsockname()[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_at_once_though_calls_hang(number, capfd):
    async def test() -> None:
        with start_provider_process() as provider:
            provider.control.script("A", {"timeout": True})
            provider.control.script("B", {"delay_ms": 3_600_000})
            async with client_of(provider.url) as client:
                calls = [asyncio.create_task(client.charge(name, "1", "EUR")) for name in "AB"]
                await asyncio.to_thread(wait_for_calls, provider.control, 2)
                os.kill(provider.pid, number)
                for call in calls:
                    assert isinstance(await failure_of(call), TransientError)
                assert await asyncio.to_thread(provider.wait) == 0

    run(test())
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "Warning" not in said
