"""One contestant's way through one fresh topic: filled, worked off, watched and judged.

It refuses to trust a contestant: nothing that a worker says counts.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.engine.contest import Contest
from benchmarks.engine.contestants import Contestant
from benchmarks.engine.judge import Judge, Sight, Verdict, effects, judge
from benchmarks.engine.load import Filler, Load
from benchmarks.engine.report import Progress
from benchmarks.engine.worker import Usage, Worker

# Joining a group, creating topics, opening stores: 2 to 5 s, more beside other work.
FIRST_EFFECT_S_MAX = 60.0
# Each look costs the broker some milliseconds.
LOOK_EVERY_S = 0.05
# Ten looks: in less, one look more or less is the difference.
SECONDS_TO_TELL = 0.5
# Latencies are taken far from saturation: every contestant can follow.
LATENCY_MESSAGES_PER_S = 200
LATENCY_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Round:
    """What came of it.

    Attributes:
        messages: effects that became visible between the first look that showed any and the last
            that showed more. What was there at the first look came before and is not counted.
        seconds: between those two looks.
        messages_per_s: None where the time was too short to tell.
        cpu_us_per_message: of the worker, between those two looks; None likewise.
        cpu_s: of the worker, from its start to the last look.
        rss_mb_max: of the worker, MiB.
        is_finished: all messages were committed before the time was up.
        is_exact: what is committed has had its effect once and in order; None where the
            contestant has no events to judge and did not finish.
        verdict: what was not exact; None without events.
    """

    messages: int
    seconds: float
    messages_per_s: float | None
    cpu_us_per_message: float | None
    cpu_s: float
    rss_mb_max: float
    is_finished: bool
    is_exact: bool | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Look:
    """The topics and the process at one moment."""

    sight: Sight
    usage: Usage


@dataclass(frozen=True, slots=True)
class Watched:
    """The first look with an effect, the last with a new one, the very last."""

    first: Look
    last: Look
    end: Look
    is_finished: bool


class Track:
    """What all races of a run share: the broker, the load, the judge.

    Args:
        broker: `kafka://host:port`.
        load: what every contestant gets.
        seconds_max: a contestant that has not finished so long after its first effect is
            stopped, and judged by what it did.
        folder: an empty directory for the contestants' data and logs.
        progress: told how far a race is.
    """

    def __init__(
        self, broker: str, load: Load, seconds_max: float, folder: Path, progress: Progress
    ) -> None:
        self._broker = broker
        self._load = load
        self._seconds_max = seconds_max
        self._folder = folder
        self._progress = progress
        self._name = f"bench-{os.getpid()}-{int(time.time())}"
        self._races = 0
        servers = broker.removeprefix("kafka://")
        self._admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        self._judge = Judge(servers)
        self._filler = Filler(servers, load)

    async def __aenter__(self) -> Self:
        await self._admin.start()
        await self._judge.start()
        await self._filler.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Delete the run's topics: the broker may be someone else's."""
        try:
            topics = await self._admin.list_topics()
            await self._admin.delete_topics([t for t in topics if t.startswith(self._name)])
        finally:
            await self._filler.stop()
            await self._judge.stop()
            await self._admin.close()

    async def race(self, contestant: Contestant, label: str) -> Round:
        """Let the contestant work off the load.

        Raises:
            WorkerError: it showed no effect, ended by itself or would not stop.
            JudgeError: it left a transaction open.
        """
        contest = await self._prepare(contestant)
        await self._filler.fill(contest.source)
        written = sum((await self._judge.ends(contest.source, contest.partitions)).values())
        if written != self._load.messages:
            raise RuntimeError(f"{contest.source} holds {written} of {self._load.messages}")
        worker = await self._start(contestant, contest)
        try:
            watched = await self._watch(contestant, contest, worker, label)
            await worker.stop()
        finally:
            await worker.kill()
        return await self._conclude(contestant, contest, watched)

    async def latencies_ms(self, contestant: Contestant, messages: int) -> list[float]:
        """From sending a message to its event being readable, at a rate that all can follow.

        Raises:
            WorkerError: it did not follow.
        """
        contest = await self._prepare(contestant)
        # The first message waits for the worker to come up and is not counted.
        load = Load(messages + 1, self._load.keys, self._load.partitions, self._load.seed)
        pause_s = 1 / LATENCY_MESSAGES_PER_S
        output = (contest.output, contest.partitions)
        worker = await self._start(contestant, contest)
        try:
            async with asyncio.timeout(FIRST_EFFECT_S_MAX):
                await self._filler.trickle(contest.source, islice(load, 1), pause_s)
                await self._judge.await_events(*output, 1)
            async with asyncio.timeout(LATENCY_S_MAX):
                seen, sent = await asyncio.gather(
                    self._judge.await_events(*output, messages + 1),
                    self._filler.trickle(contest.source, islice(load, 1, None), pause_s),
                )
            await worker.stop()
        except TimeoutError:
            worker.check()
            raise worker.error("did not follow the messages of the latency run") from None
        finally:
            await worker.kill()
        return [(seen[message_id] - at_s) * 1000 for message_id, at_s in sent.items()]

    async def _prepare(self, contestant: Contestant) -> Contest:
        self._races += 1
        name = f"{self._name}-{self._races}-{contestant.variant}"
        contest = Contest(
            variant=contestant.variant,
            broker=self._broker,
            source=f"{name}-source",
            output=f"{name}-output",
            group=name,
            partitions=self._load.partitions,
            data_dir=self._folder / name,
        )
        contest.data_dir.mkdir()
        topics = (contest.source, contest.output)
        await self._admin.create_topics([NewTopic(each, contest.partitions, 1) for each in topics])
        return contest

    async def _start(self, contestant: Contestant, contest: Contest) -> Worker:
        log = self._folder / f"{contest.group}.log"
        return await Worker.start(contest.command(contestant.path), log)

    async def _look(self, contest: Contest, worker: Worker) -> Look:
        sight = await self._judge.look(
            contest.group, contest.source, contest.output, contest.partitions
        )
        return Look(sight, worker.usage())

    async def _watch(
        self, contestant: Contestant, contest: Contest, worker: Worker, label: str
    ) -> Watched:
        total = self._load.messages
        started_s = time.monotonic()
        first: Look | None = None
        last: Look | None = None
        while True:
            look = await self._look(contest, worker)
            now_s = look.sight.at_s
            shown = _shown(contestant, look)
            if first is None or last is None:
                if shown:
                    first = last = look
                elif now_s - started_s > FIRST_EFFECT_S_MAX:
                    raise worker.error(f"no effect within {FIRST_EFFECT_S_MAX:.0f} s")
            else:
                if shown != _shown(contestant, last):
                    last = look
                done = sum(look.sight.committed.values())
                if done == total or now_s - first.sight.at_s > self._seconds_max:
                    return Watched(first, last, look, is_finished=done == total)
            self._progress.show(label, min(sum(shown.values()), total), total)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _conclude(self, contestant: Contestant, contest: Contest, watched: Watched) -> Round:
        output = verdict = None
        if contestant.emits:
            output = await self._judge.read(contest.output, contest.partitions)
            committed = await self._judge.committed(contest.group, contest.source)
            verdict = judge(self._load, committed, output)
        first, last = watched.first, watched.last
        messages = effects(last.sight, output) - effects(first.sight, output)
        seconds = last.sight.at_s - first.sight.at_s
        cpu_s = last.usage.cpu_s - first.usage.cpu_s
        tells = seconds >= SECONDS_TO_TELL
        return Round(
            messages=messages,
            seconds=round(seconds, 3),
            messages_per_s=round(messages / seconds, 1) if tells else None,
            cpu_us_per_message=round(cpu_s / messages * 1e6, 1) if tells else None,
            cpu_s=watched.end.usage.cpu_s,
            rss_mb_max=round(watched.end.usage.rss_mb_max, 1),
            is_finished=watched.is_finished,
            is_exact=verdict.is_exact if verdict else watched.is_finished or None,
            verdict=verdict,
        )


def _shown(contestant: Contestant, look: Look) -> dict[int, int]:
    """By what this contestant's progress is seen; partition -> offset."""
    return look.sight.visible if contestant.emits else look.sight.committed
