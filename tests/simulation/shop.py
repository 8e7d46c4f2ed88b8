"""The app under test: consumers whose handlers do what the seed says, and tell the log.

A handler that succeeds writes down that its message took effect, behind everything that its
key has seen so far, and emits an event. One that fails has left a row behind by then, which
nobody must ever see. The provider is outside: it can be down, and it notes who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bookstore_streams.core.effects import DeadLetter
from bookstore_streams.engine.consumer import Consumer
from bookstore_streams.engine.unit_of_work import Context
from bookstore_streams.errors import LeaseLostError, PermanentError, TransientError
from tests.simulation.backend import EFFECTS
from tests.simulation.log import Asked, Called, Ended, Spec

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

EVENTS = "events"
KNOWN_TYPES = frozenset({"Test"})
#: How a call ends that somebody else cancelled: it took too long, or its partition is closed.
CUT_SHORT = "cut short"
# What begins the keys of rows that a handler takes back before it succeeds.
LEFT_OVER = b"left-over/"


class Step(NamedTuple):
    """What one call does instead of just succeeding.

    Attributes:
        what: `transient`, `permanent`, `odd`, `cancelled`, `lease`, `slow`, or `ask`.
        ms: how long it takes, or what a transient failure asks for; 0 for nothing.
    """

    what: str
    ms: int = 0


FAILURES = ("transient", "permanent", "odd", "cancelled", "lease")
STEPS = (*FAILURES, "transient", "transient", "slow", "slow", "ask", "ask")


class Shop:
    """Consumers and the provider.

    Attributes:
        specs: of the consumers, as the checkers know them.
        scripts: (consumer, message id) -> what its next calls do; then they succeed.
        hook_scripts: the same for the dead-letter hook.
        down_until_s: time of the loop until which the provider fails.
    """

    def __init__(self, world: World, specs: Sequence[Spec]) -> None:
        self.specs = specs
        self.scripts: dict[tuple[str, str], list[Step]] = {}
        self.hook_scripts: dict[tuple[str, str], list[Step]] = {}
        self.down_until_s = 0.0
        self._world = world

    def consumers(self, worker: Worker) -> list[Consumer]:
        """The app's consumers in one worker."""
        return [_Handlers(self._world, worker, self).consumer(spec) for spec in self.specs]


class _Handlers:
    """Handler and hook of one consumer in one worker."""

    def __init__(self, world: World, worker: Worker, shop: Shop) -> None:
        self._world = world
        self._worker = worker
        self._shop = shop

    def consumer(self, spec: Spec) -> Consumer:
        return Consumer(
            name=spec.name,
            topics=spec.topics,
            handle=self.handle,
            dead_letter_topic=spec.dead_letter_topic,
            policy=spec.policy,
            parse=_parse,
            known_types=KNOWN_TYPES,
            on_dead_letter=self.hook if spec.has_hook else None,
            deadline_from=None if spec.policy.deadline_ms is None else _placed_at,
            handler_timeout_ms=self._world.shape.handler_timeout_ms,
        )

    async def handle(self, event: Any, context: Context) -> None:
        await self._run(context, "applied", self._shop.scripts)

    async def hook(self, event: Any, letter: DeadLetter, context: Context) -> None:
        await self._run(context, "dead", self._shop.hook_scripts)

    async def _run(
        self, context: Context, fate: str, scripts: dict[tuple[str, str], list[Step]]
    ) -> None:
        worker, now_ms = self._worker, self._worker.now_ms
        name, key, message_id = context.consumer, context.key, context.message_id
        who = worker.name, name, key, message_id, context.attempt
        worker.tell(Called(now_ms(), *who, context.attempt_in_round))
        result, retry_after_ms, emitted = "ok", None, []
        left_over = LEFT_OVER + message_id.encode()
        try:
            context.put(EFFECTS, left_over, b"1")
            early = context.emit(EVENTS, {"fate": "begun", "id": message_id, "by": name})
            script = scripts.get((name, message_id))
            if script:
                await self._act(script.pop(0), context)
            context.put(EFFECTS, left_over, None)
            row = f"{name}/{key}".encode()
            before = context.get(EFFECTS, row) or b""
            context.put(EFFECTS, row, before + f"{fate}:{message_id} ".encode())
            emitted = [early, context.emit(EVENTS, {"fate": fate, "id": message_id, "by": name})]
        except BaseException as error:
            result = CUT_SHORT if _is_cut_short() else type(error).__name__
            retry_after_ms = getattr(error, "retry_after_ms", None)
            raise
        finally:
            worker.tell(Ended(now_ms(), *who, result, retry_after_ms, emitted))

    async def _act(self, step: Step, context: Context) -> None:
        match step.what:
            case "transient":
                raise TransientError("down", step.ms or None)
            case "permanent":
                raise PermanentError("never")
            case "odd":
                raise ValueError("odd")
            case "cancelled":
                raise asyncio.CancelledError
            case "lease":
                raise LeaseLostError("gone")
            case "slow":
                await asyncio.sleep(step.ms / 1000)
            case "ask":
                await asyncio.sleep(self._world.latency_s())
                await self._ask(context, step.ms)

    async def _ask(self, context: Context, ms: int) -> None:
        context.ensure_lease()
        worker, loop = self._worker, self._world.loop
        worker.tell(
            Asked(worker.now_ms(), worker.name, context.consumer, context.key, context.message_id)
        )
        await asyncio.sleep(ms / 1000)
        if loop.now_s < self._shop.down_until_s or loop.now_s < worker.cut_until_s:
            raise ConnectionResetError("the provider does not answer")


def _is_cut_short() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _parse(document: Any) -> Any:
    if document.get("broken"):
        raise PermanentError("n: expected a number")
    return document


def _placed_at(event: Any) -> int | None:
    placed_at_ms: int | None = event.get("at")
    return placed_at_ms
