"""`scripts/bench failover`: who stands still, and for how long, when workers come and go.

Two workers handle messages at a steady pace; a third joins, one of the first two is killed
hard, then one leaves politely. Events tell which process made them, so it shows from outside
which partitions stayed with their worker and which moved. The stall of a partition is the
longest way of a message whose event came after that change and before the next.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from benchmarks.engine.contestants import Contestant
from benchmarks.frame import Benchmark, Found, Number, Stand
from benchmarks.judge import Heard
from benchmarks.load import Load
from benchmarks.progress import aligned
from benchmarks.race import SETTLE_S, Track
from benchmarks.worker import Worker

OURS = Contestant("subject", "deposit", "bookstore_streams")
# What is not there so long after the last message never comes.
DRAIN_S_MAX = 60.0


async def measure(args: argparse.Namespace, stand: Stand) -> Found:
    """Every change once a round."""
    spans = {"steady": args.steady, "join": args.calm, "kill": args.after_kill, "leave": args.calm}
    messages = int(sum(spans.values()) * args.rate)
    load = Load(messages, args.keys, args.partitions, args.seed)
    runs = []
    async with Track(stand, load) as track:
        for number in range(args.rounds):
            runs.append(await _run(args, stand, track, load, spans))
            for what, found in runs[-1]["spans"].items():
                stand.progress.say(f"round {number + 1}/{args.rounds} {what}: {found}")
    is_good = all(each["exact"] for each in runs)
    settings = {"session_timeout_ms": args.session_timeout_ms}
    return Found({**settings, "runs": runs, "exact": is_good}, is_good)


async def _run(
    args: argparse.Namespace,
    stand: Stand,
    track: Track,
    load: Load,
    spans: Mapping[str, float],
) -> dict[str, Any]:
    contestant = Contestant(
        OURS.module,
        OURS.variant,
        OURS.work,
        arguments=("--set", f"BROKER_SESSION_TIMEOUT_MS={args.session_timeout_ms}"),
    )
    contest = await track.contest(contestant)
    workers = [await track.start(contestant, contest, number) for number in range(2)]
    heard: list[Heard] = []
    try:
        await track.await_members(contest, 2)
        await asyncio.sleep(3 * SETTLE_S)
        begins: dict[str, float] = {}
        async with asyncio.timeout(sum(spans.values()) + DRAIN_S_MAX):
            listening = asyncio.create_task(
                track.judge.listen(contest.output, contest.partitions, load.messages, heard)
            )
            sending = asyncio.create_task(
                track.filler.trickle(contest.source, islice(load, None), 1 / args.rate)
            )
            begins["steady"] = time.monotonic()
            await asyncio.sleep(spans["steady"])
            begins["join"] = time.monotonic()
            workers.append(await track.start(contestant, contest, 2))
            await asyncio.sleep(spans["join"])
            killed = _busiest(heard, workers[:2])
            begins["kill"] = time.monotonic()
            await killed.kill()
            await asyncio.sleep(spans["kill"])
            leaving = next(each for each in workers if each is not killed)
            begins["leave"] = time.monotonic()
            await leaving.stop()
            sent = await sending
            await listening
        await asyncio.gather(*(each.stop() for each in workers if each is not killed))
    except TimeoutError:
        raise workers[-1].error(f"{len(heard)} of {load.messages} messages had an effect") from None
    finally:
        for each in workers:
            await each.kill()
    verdict, _ = await track.verdict(contest)
    return {
        "spans": {
            what: _stalls(heard, sent, begin_s, end_s)
            for (what, begin_s), end_s in zip(
                begins.items(), [*list(begins.values())[1:], float("inf")], strict=True
            )
        },
        "killed_replaced_ms": _replaced_ms(heard, killed.pid, begins["kill"]),
        "exact": verdict.is_exact,
        "verdict": asdict(verdict),
    }


def _busiest(heard: Sequence[Heard], workers: Sequence[Worker]) -> Worker:
    """The worker that has most partitions by what was heard last of each."""
    owner = {each.partition: each.told["pid"] for each in heard}
    return max(workers, key=lambda worker: list(owner.values()).count(worker.pid))


def _stalls(
    heard: Sequence[Heard], sent: Mapping[str, float], begin_s: float, end_s: float
) -> dict[str, Any]:
    """Longest way of a message whose event came in a span, by whether its partition moved there."""
    longest_ms: dict[int, float] = defaultdict(float)
    before: dict[int, int] = {}
    moved: set[int] = set()
    for each in heard:
        if each.at_s >= end_s:
            continue
        pid = each.told["pid"]
        if each.at_s >= begin_s:
            way_ms = (each.at_s - sent[each.message_id]) * 1000
            longest_ms[each.partition] = max(longest_ms[each.partition], way_ms)
            if before.get(each.partition, pid) != pid:
                moved.add(each.partition)
        before[each.partition] = pid
    stayed = longest_ms.keys() - moved
    return {
        "moved": len(moved),
        "stayed": len(stayed),
        "stall_ms_moved": _largest(longest_ms, moved),
        "stall_ms_stayed": _largest(longest_ms, stayed),
    }


def _largest(values: Mapping[int, float], of: set[int]) -> float | None:
    return round(max(values[each] for each in of), 1) if of else None


def _replaced_ms(heard: Sequence[Heard], pid: int, killed_s: float) -> float | None:
    """From the kill until each partition of the killed worker had an event of another one."""
    owner: dict[int, int] = {}
    for each in heard:
        if each.at_s <= killed_s:
            owner[each.partition] = each.told["pid"]
    lost = {partition for partition, who in owner.items() if who == pid}
    first_s: dict[int, float] = {}
    for each in heard:
        if each.partition in lost and each.told["pid"] != pid and each.at_s > killed_s:
            first_s.setdefault(each.partition, each.at_s)
    if not lost or lost != first_s.keys():
        return None
    return round((max(first_s.values()) - killed_s) * 1000, 1)


def show(values: Mapping[str, Any]) -> str:
    """A change a line."""
    head = ("change", "partitions moved", "stall ms", "stayed", "stall ms", "replaced after ms")
    rows: list[Sequence[str]] = [head]
    for run in values["runs"]:
        for what, found in run["spans"].items():
            rows.append(
                (
                    what,
                    str(found["moved"]),
                    f"{found['stall_ms_moved'] or '-'}",
                    str(found["stayed"]),
                    f"{found['stall_ms_stayed'] or '-'}",
                    f"{run['killed_replaced_ms']}" if what == "kill" else "",
                )
            )
    return aligned(rows)


BENCHMARK = Benchmark(
    name="failover",
    summary="How long partitions stand still when a worker joins, is killed, or leaves.",
    numbers={
        "messages": Number(0, 0, 0, "not used: the pace and the time say how many"),
        "keys": Number(50, 1_000, 1_000, "accounts"),
        "partitions": Number(4, 8, 8, "of each topic"),
        "rounds": Number(1, 1, 3, "every change once in each"),
        "rate": Number(50, 500, 500, "messages a second"),
        "steady": Number(1.0, 5.0, 10.0, "seconds before anything changes"),
        "calm": Number(6.0, 10.0, 20.0, "seconds after a worker joins, and after one leaves"),
        "after_kill": Number(12.0, 20.0, 30.0, "seconds after a worker is killed"),
        "session_timeout_ms": Number(6_000, 10_000, 10_000, "of the group, in ms"),
    },
    measure=measure,
    minutes=(1.5, 6.0),
    show=show,
)
