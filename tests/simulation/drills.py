"""Three messages of two keys through the real engine: a crash and a rebalance at every step.

The engine's own schedule is kept, as asyncio gives it; what is enumerated is when the crash and
when the rebalance come: between any two steps of the event loop, each before, at and after
every step of the other. The checkers are those of the drawn histories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from bookstore_streams.core.policy import Jitter, Policy
from bookstore_streams.engine.limits import Limits
from tests.simulation.interleavings import KEYS
from tests.simulation.log import Spec
from tests.simulation.plan import Plan, Shape
from tests.simulation.shop import Step
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.worker import Worker

#: What the calls of a message do: succeed; wait and succeed; fail, then wait and succeed; fail
#: for good, after which the hook waits.
SCRIPTS = {
    "o": [],
    "w": [Step("slow", 1)],
    "t": [Step("transient"), Step("slow", 1)],
    "p": [Step("permanent")],
}
REBALANCES = ("pause", "eager")


class Drill(NamedTuple):
    """What happens apart from the crash and the rebalance.

    Attributes:
        keys: of the three messages.
        scripts: of the three messages, keys of `SCRIPTS`.
        rebalance: how the group does it.
        disk: what the crash leaves of it: `kept` or `lost`.
    """

    keys: tuple[int, ...]
    scripts: tuple[str, ...]
    rebalance: str
    disk: str


class DrillWorld(World):
    """A cluster of two workers that lives through a drill.

    Attributes:
        drill: which.
        crash_at, rebalance_at: steps of the loop; None for never.
    """

    def __init__(self, drill: Drill, crash_at: int | None, rebalance_at: int | None) -> None:
        super().__init__(0, _shape(drill))
        self.drill = drill
        self.crash_at = crash_at
        self.rebalance_at = rebalance_at

    def _plan(self) -> Plan:
        return _DrillPlan(self)

    async def _produce(self) -> None:
        for n, (key, script) in enumerate(zip(self.drill.keys, self.drill.scripts, strict=True)):
            message_id = f"m{n}"
            steps = list(SCRIPTS[script])
            self.shop.scripts["billing", message_id] = steps
            self.shop.hook_scripts["billing", message_id] = [Step("slow", 1)]
            self.send("orders", f"k{key}", message_id, "message", n)
        await asyncio.sleep(0)


class _DrillPlan(Plan):
    """A crash of the owner at one step, a rebalance at another."""

    def __init__(self, world: DrillWorld) -> None:
        self._drill_world = world
        super().__init__(world)
        points = [(world.crash_at, "crash"), (world.rebalance_at, "rebalance")]
        self._points = sorted((at, what) for at, what in points if at is not None)
        self._arm_next()

    def reached(self, worker: Worker, point: str) -> None:
        pass

    def _arm_next(self) -> None:
        loop = self._world.loop
        loop.alarm_at = None
        if self._points and not self.is_over:
            loop.alarm_at = max(self._points[0][0], loop.steps)
            loop.alarm = self._on_point

    def _on_point(self) -> None:
        _, what = self._points.pop(0)
        self._arm_next()
        world = self._drill_world
        world.note(f"{what} at step {world.loop.steps}")
        if what == "rebalance":
            world.group.rebalance(is_shuffled=True)
            return
        living = world.living()
        owners = [worker for worker in living if worker.numbers] or living
        if owners:
            world.kill(owners[0], world.drill.disk)
            world.later(0.0, world.start_worker)


def _shape(drill: Drill) -> Shape:
    policy = Policy(attempts_max=3, backoff_ms_base=1, jitter=Jitter.NONE)
    return Shape(
        partitions=1,
        workers=2,
        keys=2,
        messages=3,
        specs=[Spec("billing", ("orders",), policy, True, "billing.dlt")],
        limits=Limits(concurrency=2, commit_interval_ms=0, shutdown_ms=100),
        session_timeout_ms=300,
        handler_timeout_ms=3_000,
        commit_timeout_ms=1_000,
        rebalance=drill.rebalance,
        has_fine_sends=True,
        records_max=500,
        latency_ms=0,
        latency=0.0,
        redelivery=0.0,
        loss=0.0,
        copies=0.0,
        twins=0.0,
        replays=0.0,
        poison=0.0,
        failing=0.0,
        stuck=0.0,
        gap_ms=0,
        keeps_pictures=False,
        kinds=(),
        faults=0,
        phase_ms=5_000,
    )


def drills(scripts: str = "owtp") -> Iterator[Drill]:
    """Every drill with these scripts."""
    for keys, chosen in product(KEYS, product(scripts, repeat=3)):
        for rebalance, disk in product(REBALANCES, ("kept", "lost")):
            yield Drill(keys, chosen, rebalance, disk)


def steps_of(drill: Drill) -> int:
    """Steps of a drill in which nothing goes wrong."""
    return _run(drill, None, None)


def run_singly(drill: Drill) -> int:
    """A crash at every step, and a rebalance at every step, never both; how many were tried."""
    last = steps_of(drill)
    for at in range(last + 1):
        _run(drill, at, None)
        _run(drill, None, at)
    return 2 * (last + 1)


def run_pairs(drill: Drill, first: int, *, is_crash_first: bool) -> int:
    """One of the two at step `first`, the other at every step after it; how many were tried.

    Both at the same step are tried once: with the crash first.
    """
    tried, second = 0, first if is_crash_first else first + 1
    steps = second
    while second <= steps:
        crash_at, rebalance_at = (first, second) if is_crash_first else (second, first)
        steps = _run(drill, crash_at, rebalance_at)
        tried += 1
        second += 1
    return tried


#: Worlds that have been lived in: their killed processes must never be tidied up.
_kept: list[World] = []


def _run(drill: Drill, crash_at: int | None, rebalance_at: int | None) -> int:
    """Live through a drill; steps until everything was over.

    Raises:
        AssertionError: something went wrong; says with what.
    """
    world = DrillWorld(drill, crash_at, rebalance_at)
    _kept.append(world)
    try:
        world.run()
    except Exception as error:
        where = f"{drill}, crash at {crash_at}, rebalance at {rebalance_at}"
        raise AssertionError(f"{error}\n{where}") from error
    finally:
        asyncio.tasks._all_tasks.clear()  # type: ignore[attr-defined]
    return world.loop.steps
