"""What a seed draws: the shape of the world, and which faults come when.

Swarm testing: each history has only some of the kinds of faults, most have none of most, so
that a rare one is not always covered by the consequences of another.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bookstore_streams.core.policy import Jitter, Policy
from bookstore_streams.engine.limits import Limits
from bookstore_streams.errors import ConnectionLostError, StoreError
from tests.simulation.backend import COMMITTING, INSTANT, WAITING
from tests.simulation.log import Spec

if TYPE_CHECKING:
    from tests.simulation.worker import Worker
    from tests.simulation.world import World

TOPICS = ("orders", "payments")
# Of this many histories one is long.
LONG_ONE_IN = 100

KINDS = (
    "kill",  # a worker, its disk kept, lost or older
    "freeze",  # a worker for a while: a zombie, or one whose disk takes long
    "cut",  # a worker off from broker and group for a while
    "rebalance",  # partitions change hands
    "join",  # one more worker
    "leave",  # a worker politely
    "abort",  # the broker gives up a transaction: its producer is fenced
    "refuse",  # an answer is an error, though what was asked for may have been done
    "late",  # a commit request arrives when nobody waits for it any more
    "store",  # the disk fails
    "clock",  # of a worker is set
    "provider",  # is down for a while
)
POISON = ("tombstone", "unknown-type", "undecodable", "broken", "missing-id", "missing-key")
#: What an unreadable record can say of itself in the log; the other kinds have a type.
STORE_STEPS = ("apply", "get inbox", "get effects", "get parked_keys", "get parked_messages")


@dataclass(slots=True)
class Shape:
    """The world of one history; times in ms, probabilities from 0 to 1."""

    partitions: int
    workers: int
    keys: int
    messages: int
    specs: list[Spec]
    limits: Limits
    session_timeout_ms: int
    handler_timeout_ms: int
    commit_timeout_ms: int
    rebalance: str
    has_fine_sends: bool
    records_max: int
    latency_ms: int
    latency: float
    redelivery: float
    loss: float
    copies: float
    twins: float
    replays: float
    poison: float
    failing: float
    stuck: float
    gap_ms: int
    keeps_pictures: bool
    kinds: tuple[str, ...]
    faults: int
    phase_ms: int


def draw_shape(draw: random.Random) -> Shape:
    """The shape of one seed's world."""
    pick, chance = draw.choice, draw.random
    is_long = draw.randrange(LONG_ONE_IN) == 0
    kinds = tuple(k for k in KINDS if chance() < 0.35)
    workers = pick((1, 1, 1, 2, 2, 3))
    return Shape(
        partitions=pick((1, 1, 1, 2)),
        workers=workers,
        keys=pick((1, 2, 2, 3, 4)),
        messages=draw.randint(20, 60) if is_long else draw.randint(3, 12),
        specs=_draw_specs(draw),
        limits=Limits(
            concurrency=pick((1, 2, 2, 3)),
            backlog_max=pick((1, 3, 100, 100)),
            commit_interval_ms=pick((0, 0, 5, 50)),
            commit_messages_max=pick((1, 2, 100, 100)),
            shutdown_ms=pick((100, 1_000)),
        ),
        session_timeout_ms=pick((300, 1_000)),
        handler_timeout_ms=pick((300, 3_000, 3_000)),
        commit_timeout_ms=pick((200, 1_000)),
        rebalance=pick(("pause", "pause", "eager", "cooperative")),
        has_fine_sends=chance() < 0.3,
        records_max=pick((1, 2, 500, 500)),
        latency_ms=pick((0, 1, 5, 40)),
        latency=pick((0.0, 0.1, 0.3)),
        redelivery=pick((0.0, 0.0, 0.3)),
        loss=pick((0.0, 0.0, 0.0, 0.2)),
        copies=pick((0.0, 0.0, 0.3)),
        twins=pick((0.0, 0.0, 0.0, 0.3)),
        replays=pick((0.0, 0.0, 0.3)),
        poison=pick((0.0, 0.0, 0.0, 0.3)),
        failing=pick((0.0, 0.2, 0.5, 1.0)),
        stuck=pick((0.0, 0.0, 0.2)),
        gap_ms=pick((0, 0, 5, 100)),
        keeps_pictures="kill" in kinds and chance() < 0.3,
        kinds=kinds,
        faults=(pick((3, 6, 12)) if is_long else pick((1, 1, 2, 3, 4))) if kinds else 0,
        phase_ms=pick((500, 2_000, 5_000)),
    )


def _draw_specs(draw: random.Random) -> list[Spec]:
    topics = TOPICS[: draw.choice((1, 1, 2))]
    names = ("billing", "notification")[: draw.choice((1, 1, 1, 2))]
    return [
        Spec(name, topics, policy := _draw_policy(draw), _has_hook(draw, policy), f"{name}.dlt")
        for name in names
    ]


def _has_hook(draw: random.Random, policy: Policy) -> bool:
    # Only with a hook the log tells when a message was given up for its deadline.
    return policy.deadline_ms is not None or draw.random() < 0.5


def _draw_policy(draw: random.Random) -> Policy:
    pick = draw.choice
    return Policy(
        attempts_max=draw.randint(1, 4),
        backoff_ms_base=pick((1, 30, 200)),
        backoff_factor=pick((1.0, 2.0)),
        backoff_ms_max=pick((200, 1_000)),
        jitter=pick(list(Jitter)),
        deadline_ms=pick((None, None, 300, 1_500)),
        immediate_attempts=pick((0, 0, 1, 2)),
        immediate_total_ms_max=pick((60, 2_000)),
    )


class Planned(NamedTuple):
    """One fault: what, and on which worker where it is not the one that reached the point."""

    kind: str
    victim: int


class Plan:
    """The faults of a history, each waiting for its moment."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = random.Random(world.random.random())
        self._at_steps: list[tuple[int, Planned]] = []
        # point -> how many more times it is passed before the fault comes
        self._at_points: dict[str, list[tuple[int, Planned]]] = defaultdict(list)
        self.is_over = False
        for _ in range(world.shape.faults):
            self._draw()
        self._at_steps.sort(reverse=True)
        self._arm()

    def _draw(self) -> None:
        draw, shape = self._random, self._world.shape
        fault = Planned(draw.choice(shape.kinds), draw.randrange(100))
        if fault.kind == "late":
            self._at_points["begin"].append((draw.randrange(4), fault))
        elif fault.kind == "refuse" or draw.random() < 0.6:
            # Most of what can go wrong goes wrong in or around a commit.
            point = draw.choice((*COMMITTING, *COMMITTING, *INSTANT, *WAITING))
            self._at_points[point].append((int(draw.expovariate(0.4)), fault))
        else:
            self._at_steps.append((int(2 ** (draw.random() * 6 + 5)), fault))

    def _arm(self) -> None:
        loop = self._world.loop
        loop.alarm_at = None
        if self._at_steps and not self.is_over:
            loop.alarm_at = max(self._at_steps[-1][0], loop.steps)
            loop.alarm = self._on_step

    def _on_step(self) -> None:
        _, fault = self._at_steps.pop()
        self._arm()
        living = self._world.living()
        if living:
            self._strike(
                living[fault.victim % len(living)], fault.kind, f"step {self._world.loop.steps}"
            )

    def reached(self, worker: Worker, point: str) -> None:
        """A worker has come to a point: let what waits there come."""
        waiting = self._at_points.get(point)
        if not waiting or self.is_over or worker.process.is_dead:
            return
        passes, fault = waiting[0]
        if passes:
            waiting[0] = passes - 1, fault
            return
        waiting.pop(0)
        self._strike(worker, fault.kind, point)

    def stop(self) -> None:
        """Nothing goes wrong any more."""
        self.is_over = True
        self._at_points.clear()
        self._arm()

    def _strike(self, worker: Worker, kind: str, where: str) -> None:
        world, draw = self._world, self._random
        world.note(f"{kind} {worker.name} at {where}")
        session_s = world.shape.session_timeout_ms / 1000
        match kind:
            case "kill":
                world.kill(worker, draw.choice(("kept", "kept", "lost", "older")))
                world.later(draw.choice((0.0, 0.01, session_s * 1.2)), world.start_worker)
            case "freeze":
                world.freeze(worker, draw.choice((0.01, 0.2, session_s, 2 * session_s)))
            case "cut":
                world.cut(worker, draw.choice((0.01, 0.2, session_s, 2 * session_s)))
            case "rebalance":
                world.group.rebalance(is_shuffled=True)
            case "join":
                if len(world.living()) < 4:
                    world.start_worker()
            case "leave":
                world.leave(worker)
                world.later(draw.choice((0.0, 0.3)), world.start_worker)
            case "abort":
                world.abort(draw.randrange(world.shape.partitions))
            case "refuse":
                lost = ConnectionLostError("The answer was lost.", "simulation")
                point = where if where in (*COMMITTING, *WAITING) else draw.choice(COMMITTING)
                worker.errors[point] = lost
            case "late":
                worker.late_s = draw.choice((0.01, 0.3, 2.0))
            case "store":
                worker.errors[draw.choice(STORE_STEPS)] = StoreError("damaged")
            case "clock":
                worker.clock.shift_ms = draw.choice((-20_000, -300, 300, 20_000))
            case "provider":
                world.shop.down_until_s = world.loop.now_s + draw.choice((0.1, 1.0, 3.0))
