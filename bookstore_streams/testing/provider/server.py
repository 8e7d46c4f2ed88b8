"""The payment provider over HTTP: the money API, and under `/_script` what it shall do.

It carries out what the scripts decide and the ledger allows, down to a connection that is
reset. It refuses to decide either.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web

from bookstore_streams.testing.provider.ledger import Call, Ledger, read_request, refusal
from bookstore_streams.testing.provider.script import (
    DownTime,
    Operation,
    Scope,
    Scripts,
    Step,
    parse_down,
    parse_order,
    parse_random,
    parse_step,
    parse_steps,
)

# Closing a socket that lingers for zero seconds sends RST instead of FIN.
_LINGER_NONE: Final = struct.pack("ii", 1, 0)
_GARBAGE: Final = b"\x16\x03\x01 this is no HTTP\r\n\r\n"
_TRUNCATED: Final = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 512\r\n\r\n"
    b'{"id": "charge-'
)
# A script for some 100,000 orders in one request.
_BODY_BYTES_MAX: Final = 64 * 1024 * 1024
# How long the end waits for calls under way: ordinary ones take a hundredth of it, and those
# that hang on purpose would hang for ever.
_SHUTDOWN_S: Final = 0.1


class Provider:
    """A payment provider that does what it is told, with a ledger that tells what it did.

    Every method takes effect for the calls that arrive after it returned. Wrong scripts
    raise ValueError, and nothing of them is in force.

    Args:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        ledger_file: where calls are kept for the next start; None keeps them in memory.

    Raises:
        ValueError: the ledger file is none.
        OSError: the ledger file cannot be read or written.
    """

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, ledger_file: Path | None = None
    ) -> None:
        self.ledger = Ledger(ledger_file)
        self._host, self._port = host, port
        self._scripts = Scripts()
        self._late: set[asyncio.Task[web.Response | None]] = set()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._runner = web.AppRunner(
            self._routed(),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_S,
        )
        # Bound all the time, listening while no script refuses connections.
        self._socket: socket.socket | None = None
        self._site: web.SockSite | None = None
        self._listen_lock = asyncio.Lock()
        self._listen_task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where the money API is, without a slash at its end."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def calls(self) -> list[Call]:
        """Every call in order of arrival."""
        return self.ledger.calls

    async def start(self) -> None:
        """Listens.

        Raises:
            OSError: the address is taken or not ours.
        """
        self._bind()
        await self._runner.setup()
        await self._listen_as_scripted()

    async def close(self) -> None:
        """Stops listening, cuts the calls that hang or wait, and closes the ledger."""
        tasks = [*self._late, *([self._listen_task] if self._listen_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._runner.cleanup()
        if self._socket is not None:
            self._socket.close()
        self.ledger.close()

    def script(
        self,
        order_id: str,
        *steps: Mapping[str, Any],
        operation: Scope = "any",
        forever: bool = False,
    ) -> None:
        """Gives an order one step per call; afterwards it is well, or repeats the last one."""
        source = {"order_id": order_id, "operation": operation, "steps": steps, "forever": forever}
        self._scripts.set_order(*parse_order(source))

    def default(self, *steps: Mapping[str, Any], forever: bool = False, delay_ms: int = 0) -> None:
        """Gives every order without a script these steps, and every call this latency."""
        self._set_default({"steps": steps, "forever": forever, "delay_ms": delay_ms})

    def random(self, **source: Any) -> None:
        """Draws failures for orders without a script; arguments are those of `parse_random`."""
        self._scripts.set_random(parse_random(source))

    async def down(self, **source: Any) -> None:
        """Takes the whole provider down; arguments are those of `parse_down`."""
        await self._go_down(source)

    async def _go_down(self, source: Mapping[str, Any]) -> None:
        now_ms = _now_ms()
        down = parse_down(source, now_ms)
        coming = [old for old in self._scripts.down_times if not _is_over(old, now_ms)]
        self._scripts.down_times = [*coming, down]
        await self._listen_as_scripted()

    async def up(self) -> None:
        """Ends every down time, also those to come."""
        self._scripts.down_times = []
        await self._listen_as_scripted()

    async def reset(self, *, ledger: bool = False) -> None:
        """Drops every script, and with `ledger` everything that was ever called and booked."""
        self._scripts = Scripts()
        if ledger:
            self.ledger.clear()
        await self._listen_as_scripted()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns once the condition holds; it is asked now and after each call's end.

        It waits for ever: give it a bound with `asyncio.timeout`.
        """
        if not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((condition, future))
            await future

    # The money API.

    async def _charge(self, request: web.Request) -> web.Response:
        return await self._money("charge", request)

    async def _refund(self, request: web.Request) -> web.Response:
        return await self._money("refund", request)

    async def _money(self, operation: Operation, request: web.Request) -> web.Response:
        body = await request.read()
        call = self.ledger.begin(operation, _now_ms())
        wrong = read_request(call, body, request.headers.get("Idempotency-Key"))
        step = self._scripts.down(call.at_ms)
        if step is None:
            if wrong is not None:
                self._finish(call, "rejected:400")
                return _refused(400, wrong)
            step = self._scripts.take(call.order_id, operation)
        if not step.delay_ms:
            answer = self._settle(step, call)
        else:
            # A task of its own: a provider at work goes on when its caller has given up.
            late = asyncio.create_task(self._settle_late(step, call))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            answer = await asyncio.shield(late)
        return await self._without_answer(step, request) if answer is None else answer

    async def _settle_late(self, step: Step, call: Call) -> web.Response | None:
        await asyncio.sleep(step.delay_ms / 1000)
        return self._settle(step, call)

    def _settle(self, step: Step, call: Call) -> web.Response | None:
        """Books what is to be booked; returns the answer, None where there shall be none."""
        verdict = self.ledger.verdict(call) if step.books else None
        first = self.ledger.booking(call.key)
        is_booked = verdict == "booked"
        if step.answer == "status":
            self._finish(call, f"failed:{step.status}", is_booked)
            return _scripted_answer(step, call)
        if step.answer != "ok" or verdict is None:
            self._finish(call, "reset" if step.answer == "refuse" else step.answer, is_booked)
            return None
        self._finish(call, verdict, is_booked)
        if verdict == "rejected:422":
            return _refused(422, refusal(call) or "Idempotency-Key was used with another body")
        return _receipt(first or call, is_replay=verdict == "replayed")

    async def _without_answer(self, step: Step, request: web.Request) -> web.Response:
        """Breaks the connection in the way of the step, or holds it until somebody leaves.

        It never returns: the end of the connection, or of the server, cancels it.
        """
        transport = request.transport
        if transport is None:
            pass
        elif step.answer in ("reset", "refuse"):
            peer = transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            transport.abort()
        elif step.answer in ("garbage", "truncated"):
            assert isinstance(transport, asyncio.WriteTransport)
            transport.write(_GARBAGE if step.answer == "garbage" else _TRUNCATED)
            transport.close()
        never: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
        return await never

    def _finish(self, call: Call, result: str, booked: bool = False) -> None:
        self.ledger.finish(call, result, booked, _now_ms())
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for condition, future in waiting:
                if future.done():
                    continue
                if condition():
                    future.set_result(None)
                else:
                    self._waiting.append((condition, future))

    # What is scripted, and what is told.

    def _routed(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        app.add_routes(
            [
                web.post("/charges", self._charge),
                web.post("/refunds", self._refund),
                web.post("/_script", self._post_script),
                web.delete("/_script", self._delete_script),
                web.post("/_script/default", self._post_default),
                web.post("/_script/random", self._post_random),
                web.post("/_script/down", self._post_down),
                web.delete("/_script/down", self._delete_down),
                web.get("/_ledger", self._get_ledger),
                web.get("/_ledger/{order_id:(?s:.+)}", self._get_account),
                web.get("/_calls", self._get_calls),
                web.get("/_health", self._get_health),
            ]
        )
        return app

    async def _post_script(self, request: web.Request) -> web.Response:
        try:
            source = orjson.loads(await request.read())
            orders = source if isinstance(source, list) else [source]
            parsed = [parse_order(_object(order)) for order in orders]
        except ValueError as error:
            return _refused(400, str(error))
        for order in parsed:
            self._scripts.set_order(*order)
        return _json({"orders": len(parsed)})

    async def _post_default(self, request: web.Request) -> web.Response:
        try:
            self._set_default(_object(orjson.loads(await request.read())))
        except ValueError as error:
            return _refused(400, str(error))
        return _json({})

    async def _post_random(self, request: web.Request) -> web.Response:
        try:
            source = _object(orjson.loads(await request.read()))
            self._scripts.set_random(parse_random(source))
        except ValueError as error:
            return _refused(400, str(error))
        return _json({})

    async def _post_down(self, request: web.Request) -> web.Response:
        try:
            await self._go_down(_object(orjson.loads(await request.read() or b"{}")))
        except ValueError as error:
            return _refused(400, str(error))
        return _json({})

    async def _delete_down(self, request: web.Request) -> web.Response:
        await self.up()
        return _json({})

    async def _delete_script(self, request: web.Request) -> web.Response:
        await self.reset(ledger=request.query.get("ledger") == "1")
        return _json({})

    async def _get_ledger(self, request: web.Request) -> web.Response:
        accounts = self.ledger.accounts.items()
        return _json({"orders": {order_id: account.as_json() for order_id, account in accounts}})

    async def _get_account(self, request: web.Request) -> web.Response:
        return _json(self.ledger.account(request.match_info["order_id"]).as_json())

    async def _get_calls(self, request: web.Request) -> web.Response:
        since = request.query.get("since", "0")
        if not since.isdecimal():
            return _refused(400, "`since` must be the `seq` of a call")
        return _json([call for call in self.calls if call.seq > int(since)])

    async def _get_health(self, request: web.Request) -> web.Response:
        return _json({"calls": len(self.calls)})

    def _set_default(self, source: Mapping[str, Any]) -> None:
        steps = parse_steps(source, also=("delay_ms",))
        delay_ms = parse_step({"delay_ms": source.get("delay_ms", 0)}).delay_ms
        self._scripts.set_default(steps, delay_ms)

    # The port: open, or closed while connections are refused.

    async def _listen_as_scripted(self) -> None:
        """Opens or closes the port as the scripts have it now, and comes back when they change."""
        async with self._listen_lock:
            now_ms = _now_ms()
            step = self._scripts.down(now_ms)
            if step is not None and step.answer == "refuse":
                if self._site is not None:
                    await self._site.stop()
                    self._site = None
                    # The port stays ours: bound without listening means refused.
                    self._bind()
            elif self._site is None and self._socket is not None:
                self._site = web.SockSite(self._runner, self._socket)
                await self._site.start()
            self._come_back(now_ms)

    def _come_back(self, now_ms: int) -> None:
        if self._listen_task is not None and self._listen_task is not asyncio.current_task():
            self._listen_task.cancel()
        down_times = self._scripts.down_times
        changes = [change for down in down_times for change in (down.from_ms, down.until_ms)]
        ahead = [change for change in changes if change is not None and change > now_ms]
        if ahead:
            # Held, so that it is neither collected nor forgotten at the end.
            self._listen_task = asyncio.create_task(self._listen_after(min(ahead) - now_ms))

    async def _listen_after(self, wait_ms: int) -> None:
        await asyncio.sleep(wait_ms / 1000)
        await self._listen_as_scripted()

    def _bind(self) -> None:
        found = socket.getaddrinfo(
            self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        self._socket, self._port = bound, bound.getsockname()[1]


@asynccontextmanager
async def running_provider(
    host: str = "127.0.0.1", port: int = 0, ledger_file: Path | None = None
) -> AsyncIterator[Provider]:
    """A provider in the running loop, listening as long as the block lasts."""
    provider = Provider(host, port, ledger_file)
    try:
        await provider.start()
        yield provider
    finally:
        await provider.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_over(down: DownTime, now_ms: int) -> bool:
    return down.until_ms is not None and down.until_ms <= now_ms


def _object(source: object) -> dict[str, Any]:
    if not isinstance(source, dict):
        raise ValueError(f"the body must be an object, not {source!r}")
    return source


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


def _refused(status: int, why: str) -> web.Response:
    return _json({"error": why}, status)


def _receipt(booking: Call, *, is_replay: bool) -> web.Response:
    """The answer to a booking, and the same one to each repetition of its call."""
    answer = _json(
        {
            "id": f"{booking.operation}-{booking.seq}",
            "order_id": booking.order_id,
            "amount": booking.amount,
            "currency": booking.currency,
            "status": "succeeded",
        },
        201,
    )
    if is_replay:
        answer.headers["Idempotent-Replayed"] = "true"
    return answer


def _scripted_answer(step: Step, call: Call) -> web.Response:
    headers = {} if step.retry_after is None else {"Retry-After": step.retry_after}
    if step.status < 400:
        # Back to where it came from: who follows it, books.
        headers["Location"] = f"/{call.operation}s"
    if step.body is None:
        body, kind = orjson.dumps({"error": f"scripted {step.status}"}), "application/json"
    else:
        body, kind = step.body, "text/plain"
    return web.Response(body=body, status=step.status, headers=headers, content_type=kind)
