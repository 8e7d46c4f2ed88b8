"""The real engine on the memory backend, in virtual time: a wait costs nothing and is exact.

A coroutine test in this folder runs on the virtual loop; `world` gives it a broker, workers
and a record of what their handlers saw.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from bookstore_streams.core.effects import DeadLetter
from bookstore_streams.core.envelope import inbox_id
from bookstore_streams.core.inbox import inbox_key
from bookstore_streams.core.parking import ParkedKey, parked_key
from bookstore_streams.core.policy import Jitter, Policy
from bookstore_streams.engine import calls, commit
from bookstore_streams.engine.consumer import Consumer
from bookstore_streams.engine.limits import Limits
from bookstore_streams.engine.unit_of_work import Context
from bookstore_streams.testing.memory import (
    MemoryBroker,
    MemoryDisk,
    MemoryRecord,
    MemoryWorker,
    until,
)
from bookstore_streams.testing.virtual_time import VirtualClock, run

EFFECTS = "effects"
EVENTS = "events"
HOOKS = "hooks"

#: What a handler does at one call, instead of succeeding: raise, or await something.
Step = BaseException | Callable[[Any, Context], Awaitable[object]] | None


class Call(NamedTuple):
    """One call of a handler, at its start."""

    message_id: str
    attempt: int
    at_ms: int
    consumer: str
    key: str


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = pyfuncitem._fixtureinfo.argnames
    run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


class Gate:
    """A step at which calls wait until it is opened.

    Attributes:
        reached: set once a call waits here.
        opened: set once calls may pass.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, event: Any, context: Context) -> None:
        self.reached.set()
        await self.opened.wait()

    def open(self) -> None:
        """Let all calls pass, now and later."""
        self.opened.set()


# Longer than any test with a commit that rests.
REST_S = 30.0


class World:
    """An imaginary cluster, its workers, and what their handlers saw.

    Attributes:
        calls: every call of a handler, in order.
        ended: the same calls, in the order in which they ended, however.
        running: calls under way now; `running_max` the most there ever were.
        overlaps: (consumer, key) of calls that began while another of the same key ran.
        scripts: message id -> what its next calls do; a call without any succeeds.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.clock = VirtualClock()
        self.broker = MemoryBroker(partitions=partitions, now_ms=self.clock.now_ms)
        self.disk = MemoryDisk()
        self.calls: list[Call] = []
        self.ended: list[Call] = []
        self.letters: list[DeadLetter] = []
        self.running: list[tuple[str, str]] = []
        self.running_max = 0
        self.overlaps: list[tuple[str, str]] = []
        self.scripts: dict[str, list[Step]] = defaultdict(list)
        self.hook_scripts: dict[str, list[Step]] = defaultdict(list)
        self._sent = 0

    # -- sending --------------------------------------------------------------------------

    def send(
        self,
        key: str | bytes | None,
        message_id: str | None = None,
        *,
        value: object = None,
        topic: str = "orders",
        partition: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> MemoryRecord:
        """Produce one message; bytes are taken as they are, anything else becomes JSON."""
        self._sent += 1
        own = [] if message_id is None else [("message-id", message_id.encode())]
        return self.broker.produce(
            topic,
            key.encode() if isinstance(key, str) else key,
            value
            if isinstance(value, bytes)
            else json.dumps({"type": "Test", "n": self._sent} if value is None else value).encode(),
            [*own, *headers],
            partition,
        )

    # -- consumers and workers ------------------------------------------------------------

    def consumer(self, name: str = "billing", **changes: Any) -> Consumer:
        """A consumer that records its calls and does what the scripts say.

        A success writes how often the message took effect, and emits one event.
        """
        policy = {"backoff_ms_base": 2_000, "jitter": Jitter.NONE, "attempts_max": 5}
        policy |= changes.pop("policy", {})
        given: dict[str, Any] = {
            "name": name,
            "topics": ("orders",),
            "handle": lambda event, context: self._handle(name, event, context),
            "dead_letter_topic": f"{name}.dlt",
            "policy": Policy(**policy),  # type: ignore[arg-type]
        }
        return Consumer(**(given | changes))

    async def hook(self, event: Any, letter: DeadLetter, context: Context) -> None:
        """Tell of a dead letter, after what the hook's script says."""
        self.letters.append(letter)
        script = self.hook_scripts[context.message_id]
        await self._act(script.pop(0) if script else None, event, context)
        context.put(HOOKS, context.message_id.encode(), letter.reason.encode())
        context.emit(EVENTS, {"given_up": context.message_id})

    def worker(self, *consumers: Consumer, **changes: Any) -> MemoryWorker:
        """A worker that is not started yet; limits are given by their own names."""
        names = ("disk", "session_timeout_ms", "records_max")
        given = {name: changes.pop(name) for name in names if name in changes}
        return MemoryWorker(
            self.broker,
            consumers or [self.consumer()],
            self.clock,
            tables=[EFFECTS, HOOKS],
            limits=Limits(**changes),
            **({"disk": self.disk} | given),
        )

    async def start(self, *consumers: Consumer, **changes: Any) -> MemoryWorker:
        """A worker that has all partitions open."""
        worker = self.worker(*consumers, **changes)
        worker.start()
        await until(worker.engine.is_ready)
        return worker

    async def let_commits_rest(self, worker: MemoryWorker, message_id: str = "a1") -> None:
        """Let the next message's commit take `REST_S`: it is followed by as long a rest.

        Unless the commit interval is shorter; what is finished in the rest waits for its end.
        """
        hold = worker.backend.faults.hold("commit")
        self.send("A", message_id)
        await hold.reached.wait()
        await asyncio.sleep(REST_S)
        hold.let_go()
        await self.until_applied(message_id)

    def gate(self, message_id: str) -> Gate:
        """Let the next call of a message wait."""
        gate = Gate()
        self.scripts[message_id].append(gate)
        return gate

    async def _handle(self, name: str, event: Any, context: Context) -> None:
        mine = (name, context.key)
        call = Call(context.message_id, context.attempt, self.clock.now_ms(), name, context.key)
        self.calls.append(call)
        if mine in self.running:
            self.overlaps.append(mine)
        self.running.append(mine)
        self.running_max = max(self.running_max, len(self.running))
        try:
            script = self.scripts[context.message_id]
            await self._act(script.pop(0) if script else None, event, context)
            row = f"{name}/{context.message_id}".encode()
            context.put(EFFECTS, row, b"%d" % (int(context.get(EFFECTS, row) or 0) + 1))
            context.emit(EVENTS, {"done": context.message_id, "by": name})
        finally:
            self.running.remove(mine)
            self.ended.append(call)

    async def _act(self, step: Step, event: Any, context: Context) -> None:
        if isinstance(step, BaseException):
            raise step
        if step is not None:
            await step(event, context)

    # -- looking --------------------------------------------------------------------------

    def called(self, key: str | None = None) -> list[str]:
        """Message ids in order of their calls, of one key where given."""
        return [call.message_id for call in self.calls if key is None or call.key == key]

    def at(self, message_id: str) -> list[int]:
        """When a message was called, ms since the first call of it."""
        times = [call.at_ms for call in self.calls if call.message_id == message_id]
        return [time - times[0] for time in times]

    def attempts(self, message_id: str) -> list[int]:
        """The attempt numbers that the calls of a message were told."""
        return [call.attempt for call in self.calls if call.message_id == message_id]

    def effects(self, consumer: str = "billing") -> dict[str, int]:
        """Message id -> how often it took effect, as the changelog tells."""
        rows: dict[bytes, bytes | None] = {}
        for record in self.broker.records(f"app-{EFFECTS}-changelog"):
            rows[record.key or b""] = record.value
        found = {}
        for row_key, value in rows.items():
            name, _, message_id = row_key.decode().partition("/")
            if name == consumer:
                found[message_id] = int(value or b"0")
        return found

    def events(self) -> list[Any]:
        """Documents of the events emitted, in order."""
        return [json.loads(record.value or b"") for record in self.broker.records(EVENTS)]

    def dead(self, consumer: str = "billing") -> list[MemoryRecord]:
        """The dead letters of a consumer."""
        return self.broker.records(f"{consumer}.dlt")

    def reasons(self, consumer: str = "billing") -> dict[str | None, str | None]:
        """Message id -> reason, of the dead letters."""
        return {r.header("message-id"): r.header("dlt-reason") for r in self.dead(consumer)}

    def rows(self, table: str, number: int = 0) -> dict[bytes, bytes]:
        """What the changelog of a table says."""
        rows: dict[bytes, bytes] = {}
        for record in self.broker.read(f"app-{table}-changelog", number, 0):
            rows.pop(record.key or b"", None)
            if record.value is not None:
                rows[record.key or b""] = record.value
        return rows

    def parked(self, key: str, consumer: str = "billing") -> ParkedKey | None:
        """The committed row of a parked key."""
        raw = self.rows("parked_keys").get(parked_key(consumer, key))
        return None if raw is None else ParkedKey.from_row(json.loads(raw))

    def outcome(self, message_id: str, consumer: str = "billing") -> str | None:
        """What the committed inbox row of a message says."""
        raw = self.rows("inbox").get(inbox_key(consumer, inbox_id(message_id)))
        return None if raw is None else str(json.loads(raw)["outcome"])

    def offset(self, topic: str = "orders", partition: int = 0) -> int | None:
        """The group's committed offset."""
        return self.broker.committed("app", topic, partition)

    async def until_applied(self, *message_ids: str, consumer: str = "billing") -> None:
        """Wait until these messages, and maybe others, have taken effect."""
        await until(lambda: set(message_ids) <= set(self.effects(consumer)), poll_s=0.01)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine's timeouts and intervals go by the loop's time too."""
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    for module in (calls, commit):
        monkeypatch.setattr(module, "time", clock)
