"""A TCP proxy between one worker and Kafka, whose connections can be held, delayed and cut.

It knows just enough of the protocol to tell requests from each other: a fault can be timed to
a kind of request, before it reaches the broker or after, so that its answer is what is missing.
It refuses to lose or to change single bytes: TCP does not do that either. Lost is what was
under way when a connection is cut.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import TracebackType
from typing import Any, Self

from bookstore_streams.testing.brokers import HOST, KafkaBroker


class Api(IntEnum):
    """Kinds of requests. Source: the Kafka protocol guide, API keys."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class When(Enum):
    """Where a request is cut off: on its way, or answered and on the way back."""

    BEFORE = "before it reaches the broker"
    AFTER = "before its answer reaches the worker"


class Way(Enum):
    """A direction."""

    REQUESTS = "worker to broker"
    ANSWERS = "broker to worker"


BOTH = (Way.REQUESTS, Way.ANSWERS)


@dataclass(slots=True)
class _Trap:
    """Cuts all connections at a request of this kind.

    Attributes:
        skips: how many such requests are let through first.
        sprung: set once it has.
    """

    api: Api
    when: When
    skips: int
    sprung: threading.Event


class _Connection:
    """One connection of the worker and the one to the broker that belongs to it."""

    def __init__(self, link: Link, worker: _Ends, broker: _Ends) -> None:
        self._link = link
        self._worker = worker
        self._broker = broker
        # Correlation id of a request whose answer must not arrive -> what it springs.
        self._caught: dict[int, _Trap] = {}

    async def run(self) -> None:
        """Carry bytes until either side ends or it is cut."""
        ways = {asyncio.create_task(self._requests()), asyncio.create_task(self._answers())}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.cut()

    def cut(self) -> None:
        """Reset both connections: what is under way is lost."""
        for _, writer in (self._worker, self._broker):
            writer.transport.abort()

    async def _requests(self) -> None:
        reader, (_, writer) = self._worker[0], self._broker
        while (frame := await _frame(reader)) is not None:
            api, _, correlation_id = struct.unpack_from(">hhi", frame, 4)
            self._link.requests[api] += 1
            await self._link.passes(Way.REQUESTS)
            trap = self._link.trap_for(api)
            if trap is not None and trap.when is When.BEFORE:
                self._link.cut_now()
                trap.sprung.set()
                return
            if trap is not None:
                self._caught[correlation_id] = trap
            writer.write(frame)
            await writer.drain()

    async def _answers(self) -> None:
        reader, (_, writer) = self._broker[0], self._worker
        while (frame := await _frame(reader)) is not None:
            await self._link.passes(Way.ANSWERS)
            (correlation_id,) = struct.unpack_from(">i", frame, 4)
            trap = self._caught.pop(correlation_id, None)
            if trap is not None:
                self._link.cut_now()
                trap.sprung.set()
                return
            writer.write(frame)
            await writer.drain()


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """What stands between one worker and the broker; all its methods but `run` are thread-safe.

    Attributes:
        port: where the worker connects, on loopback.
        target: port of the broker; set before anybody connects.
        requests: api key -> how many came.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.target = 0
        self.requests: Counter[int] = Counter()
        self.delay_s = 0.0
        self._loop = loop
        self._listener = socket.create_server((HOST, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._flows = {way: asyncio.Event() for way in Way}
        for flow in self._flows.values():
            flow.set()
        self._connections: set[_Connection] = set()
        self._handlers: set[asyncio.Task[Any]] = set()
        self._trap: _Trap | None = None
        self._server: asyncio.Server | None = None

    # -- what tests call, from another thread ---------------------------------------------------

    def hold(self, *ways: Way) -> None:
        """Let nothing pass in these directions, both without one; connections stay open."""
        for way in ways or BOTH:
            self._soon(self._flows[way].clear)

    def release(self) -> None:
        """Let everything pass, what was held first."""
        for way in Way:
            self._soon(self._flows[way].set)

    def cut(self) -> None:
        """Reset every connection. What was held is lost; new ones are taken."""
        self._soon(self.cut_now)

    def lose(self) -> None:
        """Reset every connection, with what was held, and let new ones pass."""

        def lose() -> None:
            self.cut_now()
            for flow in self._flows.values():
                flow.set()

        self._soon(lose)

    def cut_at(self, api: Api, when: When, skips: int = 0) -> threading.Event:
        """Cut all connections at a request of this kind, once; what is returned says when."""
        trap = _Trap(api, when, skips, threading.Event())
        self._trap = trap
        return trap.sprung

    def mend(self) -> None:
        """Undo everything that was done to it."""
        self.disarm()
        self.delay_s = 0.0
        self.lose()

    def disarm(self) -> None:
        """Forget what `cut_at` was told, if it has not happened."""
        self._trap = None

    # -- what connections ask -------------------------------------------------------------------

    async def passes(self, way: Way) -> None:
        """Wait until this direction is open."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._flows[way].wait()

    def trap_for(self, api: int) -> _Trap | None:
        """The trap that this request springs."""
        trap = self._trap
        if trap is None or trap.api != api:
            return None
        if trap.skips:
            trap.skips -= 1
            return None
        self._trap = None
        return trap

    # -- its life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take connections."""
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def stop(self) -> None:
        """Cut everything and take no more."""
        if self._server is not None:
            self._server.close()
        for handler in list(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            _reset_when_closed(writer)
            try:
                broker = await asyncio.open_connection(HOST, self.target)
            except OSError:  # it is down: refuse, as it would
                writer.transport.abort()
                return
            _reset_when_closed(broker[1])
            connection = _Connection(self, (reader, writer), broker)
            self._connections.add(connection)
            try:
                await connection.run()
            finally:
                self._connections.discard(connection)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._handlers.discard(task)

    def cut_now(self) -> None:
        """Reset every connection; on the proxy's own loop."""
        for connection in list(self._connections):
            connection.cut()

    def _soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)


class Proxy:
    """Links that run in a thread of their own, so that a test that blocks holds up no bytes."""

    def __init__(self, links: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self.links = [Link(self._loop) for _ in range(links)]

    def __enter__(self) -> Self:
        self._thread.start()
        for link in self.links:
            self._run(link.start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for link in self.links:
            self._run(link.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self._loop).result(30)


@dataclass(frozen=True, slots=True)
class Proxied:
    """A running Kafka, and links to it that each worker may have one of."""

    broker: KafkaBroker
    links: list[Link]


async def _frame(reader: asyncio.StreamReader) -> bytes | None:
    """One request or answer with its length; None where the connection ends."""
    try:
        head = await reader.readexactly(4)
        return head + await reader.readexactly(*struct.unpack(">i", head))
    except (asyncio.IncompleteReadError, OSError):
        return None


def _reset_when_closed(writer: asyncio.StreamWriter) -> None:
    """Without lingering an abort sends RST and not FIN; and small requests leave at once."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
