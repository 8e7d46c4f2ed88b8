"""One contestant's way through one fresh topic: filled, worked off, watched and judged.

It refuses to trust a contestant: nothing that a worker says counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Self

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from benchmarks.engine.contest import Contest
from benchmarks.engine.contestants import Contestant
from benchmarks.frame import Stand
from benchmarks.judge import (
    Judge,
    JudgeError,
    Output,
    Sight,
    Verdict,
    effects,
    judge,
    no_account,
)
from benchmarks.load import Filler, Load
from benchmarks.worker import Usage, Worker, total

# Joining a group, creating topics, opening stores: 2 to 5 s, more beside other work.
FIRST_EFFECT_S_MAX = 60.0
# Each look costs the broker some milliseconds.
LOOK_EVERY_S = 0.05
# Ten looks: in less, one look more or less is the difference.
SECONDS_TO_TELL = 0.5
FOLLOW_S_MAX = 60.0
# After a start: imports, first rebalance and caches are not what a latency run is about.
SETTLE_S = 1.0
# Of our engine's contestants; their partitions are those of the race that was first.
DEAD_LETTERS = ("bookstore.orders.work.dlt", "bookstore.orders.waits.dlt")
# Between two looks at a group that is to come to rest.
GROUP_LOOK_S = 0.2


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
class Conditions:
    """Under which a race takes place.

    Attributes:
        workers: processes of the contestant, which share the group; with more than one the
            source is filled only once all of them have joined.
        is_silent: tells accounts whose messages must lead to no event.
        first_effect_s_max: how long it may take until the first event is there.
        follow_s_max: in a latency run, how long after the last message its event may come.
        prepare: awaited before the worker is started, with its topics there and empty.
        before_stop: awaited when the work is done, while the workers still run.
    """

    workers: int = 1
    is_silent: Callable[[str], bool] = no_account
    first_effect_s_max: float = FIRST_EFFECT_S_MAX
    follow_s_max: float = FOLLOW_S_MAX
    prepare: Callable[[Contest], Awaitable[None]] | None = None
    before_stop: Callable[[Contest, Sequence[Worker]], Awaitable[None]] | None = None


PLAIN = Conditions()


@dataclass(frozen=True, slots=True)
class Latencies:
    """What came of a race at a given pace.

    Attributes:
        ms: message id -> from sending it to its event being readable.
        verdict: on all events of the race.
    """

    ms: dict[str, float]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Look:
    """The topics and the processes at one moment."""

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
        stand: broker, folder for the contestants' data and logs, and whom to tell how far it is.
        load: what every contestant gets.
        seconds_max: a contestant that has not finished so long after its first effect is
            stopped, and judged by what it did.
    """

    def __init__(self, stand: Stand, load: Load, seconds_max: float = 60.0) -> None:
        self.judge = Judge(stand.servers)
        self.filler = Filler(stand.servers, load)
        self.admin = AIOKafkaAdminClient(bootstrap_servers=stand.servers)
        self._stand = stand
        self._load = load
        self._seconds_max = seconds_max
        self._name = stand.unique_name()
        self._races = 0

    async def __aenter__(self) -> Self:
        await self.admin.start()
        await self.judge.start()
        await self.filler.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Delete the run's topics: the broker may be someone else's."""
        try:
            topics = await self.admin.list_topics()
            ours = [t for t in topics if t.startswith(self._name) or t in DEAD_LETTERS]
            await self.admin.delete_topics(ours)
        finally:
            await self.filler.stop()
            await self.judge.stop()
            await self.admin.close()

    async def race(
        self, contestant: Contestant, label: str, conditions: Conditions = PLAIN
    ) -> Round:
        """Let the contestant work off the load.

        Raises:
            WorkerError: it showed no effect, ended by itself or would not stop.
            JudgeError: it left a transaction open.
        """
        contest = await self.contest(contestant)
        if conditions.prepare is not None:
            await conditions.prepare(contest)
        is_alone = conditions.workers == 1
        if is_alone:
            await self.fill(contest)
        workers: list[Worker] = []
        try:
            for number in range(conditions.workers):
                workers.append(await self.start(contestant, contest, number))
            if not is_alone:
                await self.await_members(contest, conditions.workers)
                await self.fill(contest)
            watched = await self._watch(contestant, contest, workers, label, conditions)
            if conditions.before_stop is not None:
                await conditions.before_stop(contest, workers)
            await asyncio.gather(*(worker.stop() for worker in workers))
        finally:
            for worker in workers:
                await worker.kill()
        return await self._conclude(contestant, contest, watched, conditions.is_silent)

    async def latencies(
        self,
        contestant: Contestant,
        messages: int,
        messages_per_s: float,
        conditions: Conditions = PLAIN,
    ) -> Latencies:
        """From sending a message to its event being readable, at a rate that all can follow.

        The first messages, until each partition had one that leads to an event, wait for the
        worker to come up and are not counted; after them it gets a moment to come to rest.

        Raises:
            WorkerError: it did not follow.
            JudgeError: it left a transaction open.
        """
        contest = await self.contest(contestant)
        if conditions.prepare is not None:
            await conditions.prepare(contest)
        warm_up = _reaching_all(self._load, conditions.is_silent)
        load = replace(self._load, messages=messages + warm_up)
        heard = [m.message_id for m in load if not conditions.is_silent(m.account)]
        heard_first = sum(not conditions.is_silent(m.account) for m in islice(load, warm_up))
        pause_s = 1 / messages_per_s
        output = (contest.output, contest.partitions)
        worker = await self.start(contestant, contest)
        try:
            async with asyncio.timeout(conditions.first_effect_s_max):
                await self.filler.trickle(contest.source, islice(load, warm_up), pause_s)
                await self.judge.await_events(*output, heard_first)
            await asyncio.sleep(SETTLE_S)
            async with asyncio.timeout(messages * pause_s + conditions.follow_s_max):
                seen, sent = await asyncio.gather(
                    self.judge.await_events(*output, len(heard)),
                    self.filler.trickle(contest.source, islice(load, warm_up, None), pause_s),
                )
            if conditions.before_stop is not None:
                await conditions.before_stop(contest, [worker])
            await worker.stop()
        except TimeoutError:
            worker.check()
            raise worker.error("did not follow the messages of the latency run") from None
        finally:
            await worker.kill()
        verdict = judge(
            load,
            await self.judge.committed(contest.group, contest.source),
            await self.judge.read(*output),
            conditions.is_silent,
        )
        return Latencies(
            {each: (seen[each] - at_s) * 1000 for each, at_s in sent.items() if each in seen},
            verdict,
        )

    # -- the parts of a race, for benchmarks that need another order -------------------------

    async def contest(self, contestant: Contestant) -> Contest:
        """Fresh topics, names and a directory."""
        self._races += 1
        name = f"{self._name}-{self._races}-{contestant.variant}"
        contest = Contest(
            variant=contestant.variant,
            broker=self._stand.broker,
            source=f"{name}-source",
            output=f"{name}-output",
            group=name,
            partitions=self._load.partitions,
            data_dir=self._stand.folder / name,
        )
        contest.data_dir.mkdir()
        topics = (contest.source, contest.output)
        await self.admin.create_topics([NewTopic(each, contest.partitions, 1) for each in topics])
        return contest

    async def fill(self, contest: Contest) -> None:
        """Write the whole load, and look whether it is there."""
        await self.filler.fill(contest.source)
        written = sum((await self.judge.ends(contest.source, contest.partitions)).values())
        if written != self._load.messages:
            raise RuntimeError(f"{contest.source} holds {written} of {self._load.messages}")

    async def start(self, contestant: Contestant, contest: Contest, number: int = 0) -> Worker:
        """One process of the contestant; `number` tells those of the same group apart."""
        log = self._stand.folder / f"{contest.group}-{number}.log"
        data_dir = contest.data_dir / str(number)
        data_dir.mkdir(exist_ok=True)
        command = replace(contest, data_dir=data_dir).command(contestant.path)
        return await Worker.start([*command, *contestant.arguments], log)

    async def await_members(self, contest: Contest, count: int) -> None:
        """Wait until the group has so many members and gives out nothing any more.

        Raises:
            JudgeError: it does not come to rest.
        """
        deadline_s = time.monotonic() + FIRST_EFFECT_S_MAX
        while time.monotonic() < deadline_s:
            try:
                described = await self.admin.describe_consumer_groups([contest.group])
            except KafkaError:  # a new broker has had no group yet
                described = []
            # error, name, state, protocol type, protocol, members
            found = [tuple(group) for each in described for group in each.groups]
            if any(group[2] == "Stable" and len(group[5]) == count for group in found):
                return
            await asyncio.sleep(GROUP_LOOK_S)
        raise JudgeError(f"{contest.group} did not come to {count} members")

    async def verdict(
        self, contest: Contest, is_silent: Callable[[str], bool] = no_account
    ) -> tuple[Verdict, Output]:
        """What is in the output topic, held against what is committed."""
        output = await self.judge.read(contest.output, contest.partitions)
        committed = await self.judge.committed(contest.group, contest.source)
        return judge(self._load, committed, output, is_silent), output

    async def _look(self, contest: Contest, workers: Sequence[Worker]) -> Look:
        sight = await self.judge.look(
            contest.group, contest.source, contest.output, contest.partitions
        )
        return Look(sight, total(worker.usage() for worker in workers))

    async def _watch(
        self,
        contestant: Contestant,
        contest: Contest,
        workers: Sequence[Worker],
        label: str,
        conditions: Conditions,
    ) -> Watched:
        whole = self._load.messages
        started_s = time.monotonic()
        first: Look | None = None
        last: Look | None = None
        while True:
            look = await self._look(contest, workers)
            now_s = look.sight.at_s
            shown = _shown(contestant, look)
            if first is None or last is None:
                if shown:
                    first = last = look
                elif now_s - started_s > conditions.first_effect_s_max:
                    raise workers[0].error(
                        f"no effect within {conditions.first_effect_s_max:.0f} s"
                    )
            else:
                if shown != _shown(contestant, last):
                    last = look
                done = sum(look.sight.committed.values())
                if done == whole or now_s - first.sight.at_s > self._seconds_max:
                    return Watched(first, last, look, is_finished=done == whole)
            self._stand.progress.show(label, min(sum(shown.values()), whole), whole)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _conclude(
        self,
        contestant: Contestant,
        contest: Contest,
        watched: Watched,
        is_silent: Callable[[str], bool],
    ) -> Round:
        output = verdict = None
        if contestant.emits:
            verdict, output = await self.verdict(contest, is_silent)
        first, last = watched.first, watched.last
        messages = effects(last.sight, output) - effects(first.sight, output)
        seconds = last.sight.at_s - first.sight.at_s
        cpu_s = last.usage.cpu_s - first.usage.cpu_s
        tells = seconds >= SECONDS_TO_TELL and messages > 0
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


def _reaching_all(load: Load, is_silent: Callable[[str], bool]) -> int:
    """How many messages from the beginning give each partition one that leads to an event."""
    partitions = {m.partition for m in load if not is_silent(m.account)}
    for number, message in enumerate(load):
        if not is_silent(message.account):
            partitions.discard(message.partition)
        if not partitions:
            return number + 1
    raise ValueError("every account of the load is silent")


def _shown(contestant: Contestant, look: Look) -> dict[int, int]:
    """By what this contestant's progress is seen; partition -> offset."""
    return look.sight.visible if contestant.emits else look.sight.committed
