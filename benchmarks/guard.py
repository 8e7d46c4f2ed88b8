"""`scripts/bench guard`: work per message, counted instead of timed, against a budget.

Counts the bytecode instructions of our own code and the calls that it makes while the real
engine handles messages on the memory backend in virtual time. That is the same on every
machine and under every load, for one version of Python: a change that makes a message
dearer shows in CI, where times would not tell. What clients and RocksDB cost is not in it.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import orjson

import bookstore_streams
from benchmarks.engine.contest import MESSAGE_ID, deposit
from bookstore_streams.core.policy import Jitter, Policy
from bookstore_streams.engine.consumer import Consumer
from bookstore_streams.engine.unit_of_work import Context
from bookstore_streams.errors import TransientError
from bookstore_streams.testing.memory import MemoryBroker, MemoryWorker, until
from bookstore_streams.testing.virtual_time import VirtualClock, run

BUDGET = Path(__file__).with_name("budget.json")
# Of the budget: counts are the same in every run, so this is only for what is not worth a line.
TOLERANCE = 0.01
MESSAGES = 400
KEYS = 40
SOURCE, EVENTS, ROWS = "deposits", "balances", "rows"

_OWN = str(Path(bookstore_streams.__file__).parent)
_KIT = str(Path(bookstore_streams.__file__).parent / "testing")


class Work(NamedTuple):
    """What one message costs.

    Attributes:
        instructions: bytecode instructions of the engine and the core.
        calls: of functions, Python's and C's, made by them.
    """

    instructions: float
    calls: float


def measure(scenario: str) -> Work:
    """Work per message; what is done once for all messages is taken out."""
    few, many = (_counted(scenario, number) for number in (MESSAGES, 2 * MESSAGES))
    return Work(*(round((b - a) / MESSAGES, 1) for a, b in zip(few, many, strict=True)))


def _counted(scenario: str, messages: int) -> tuple[int, int]:
    world = SCENARIOS[scenario](messages)
    counter = _Counter()
    sys.settrace(counter.trace)
    sys.setprofile(counter.profile)
    try:
        run(world())
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    return counter.instructions, counter.calls


class _Counter:
    """Counts what frames of the engine and the core do."""

    def __init__(self) -> None:
        self.instructions = 0
        self.calls = 0
        self._is_own: dict[str, bool] = {}

    def _owns(self, frame: FrameType | None) -> bool:
        if frame is None:
            return False
        name = frame.f_code.co_filename
        known = self._is_own.get(name)
        if known is None:
            known = self._is_own[name] = name.startswith(_OWN) and not name.startswith(_KIT)
        return known

    def trace(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        """See `sys.settrace`."""
        if event == "call":
            if not self._owns(frame):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            self.instructions += 1
        return self.trace

    def profile(self, frame: FrameType, event: str, arg: object) -> None:
        """See `sys.setprofile`."""
        if event == "c_call":
            self.calls += self._owns(frame)
        elif event == "call":
            self.calls += self._owns(frame.f_back)


World = Callable[[], Coroutine[Any, Any, None]]


def _world(messages: int, *, copies: int = 1, fails: bool = False) -> World:
    """A worker that handles so many messages, `copies` of each, from start to stop."""

    async def handle(message: Any, context: Context) -> None:
        if fails:
            raise TransientError("not today")
        key = context.key.encode()
        raw = context.get(ROWS, key)
        row, told = deposit(orjson.loads(raw) if raw else None, message, context.message_id)
        context.put(ROWS, key, orjson.dumps(row))
        context.emit(EVENTS, told)

    async def wait(message: Any, context: Context) -> None:
        """Declared, as in a shop, with a topic of its own."""

    async def world() -> None:
        clock = VirtualClock()
        broker = MemoryBroker(partitions=1, now_ms=clock.now_ms)
        policy = Policy(jitter=Jitter.NONE, backoff_ms_base=3_600_000, backoff_ms_max=3_600_000)
        consumers = [
            Consumer("work", (SOURCE,), handle, "work.dlt", policy, emits=frozenset({EVENTS})),
            Consumer("waits", ("others",), wait, "waits.dlt"),
        ]
        worker = MemoryWorker(broker, consumers, clock, tables=(ROWS,))
        for number in range(messages):
            account = f"account-{number % KEYS:06d}"
            value = orjson.dumps({"type": "Deposited", "account": account, "amount": 7})
            for _ in range(copies):
                headers = [(MESSAGE_ID, b"m-%08d" % number)]
                broker.produce(SOURCE, account.encode(), value, headers)
        worker.start()
        total = messages * copies
        await until(lambda: broker.committed("app", SOURCE, 0) == total, 600.0, 0.05)
        await worker.stop()

    return world


#: Name -> a world of so many messages.
SCENARIOS: dict[str, Callable[[int], World]] = {
    # Decoded, looked up, handled, a row and an event staged, committed.
    "applied": lambda messages: _world(messages),
    # The same, and a second copy of each message.
    "applied and its copy dropped": lambda messages: _world(messages, copies=2),
    # The first message of each key fails and is parked, the others are parked behind it.
    "parked": lambda messages: _world(messages, fails=True),
}


def found() -> dict[str, Any]:
    """All counts, with the version of Python that they hold for."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "per_message": {name: measure(name)._asdict() for name in SCENARIOS},
    }


def budget() -> dict[str, Any]:
    """What is allowed, as `--write` left it."""
    kept: dict[str, Any] = json.loads(BUDGET.read_text())
    return kept


def overdrawn(counts: dict[str, Any], allowed: dict[str, Any]) -> list[str]:
    """One line for each count above its budget."""
    return [
        f"{name}: {count:g} {what} a message, {allowed['per_message'][name][what]:g} allowed"
        for name, work in counts["per_message"].items()
        for what, count in work.items()
        if count > allowed["per_message"][name][what] * (1 + TOLERANCE)
    ]


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 within the budget, 1 above it or another Python, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench guard",
        description="Bytecode instructions and calls per message in the engine and the core, "
        "against the budget in benchmarks/budget.json.",
    )
    parser.add_argument("--write", action="store_true", help="make what is counted the budget")
    args = parser.parse_args(argv)
    counts = found()
    print(json.dumps(counts))
    if args.write:
        BUDGET.write_text(json.dumps(counts, indent=2) + "\n")
        return 0
    allowed = budget()
    if counts["python"] != allowed["python"]:
        print(f"the budget is for Python {allowed['python']}", file=sys.stderr)
        return 1
    too_much = overdrawn(counts, allowed)
    print("\n".join(too_much), file=sys.stderr)
    return 1 if too_much else 0
