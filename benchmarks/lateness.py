"""`scripts/bench lateness`: how late retries come while very many keys are parked.

Every key gets one message, fails at its first attempt with a wait that ends at a time of its
own, and so is parked; the times are spread evenly over a stretch. What was promised is the
`due_ms` in the key's row in the changelog; the handler tells when it was called.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from typing import Any

import orjson

from benchmarks.engine.contest import Contest
from benchmarks.engine.contestants import Contestant
from benchmarks.figures import percentiles
from benchmarks.frame import Benchmark, Found, Number, Stand
from benchmarks.judge import Heard
from benchmarks.load import Filler, Load, Message, account_number
from benchmarks.progress import aligned
from benchmarks.race import Track
from benchmarks.tables import changes
from bookstore_streams.core.parking import split_parked_key

STOP_S_MAX = 120.0


async def measure(args: argparse.Namespace, stand: Stand) -> Found:
    """Park every key, wait for all of them."""
    load = Load(args.keys, args.keys, args.partitions, args.seed, is_in_turn=True)
    runs = []
    async with Track(stand, load) as track:
        for number in range(args.rounds):
            runs.append(await _run(args, stand, track, load))
            late = runs[-1]["late_ms"]
            stand.progress.say(
                f"round {number + 1}/{args.rounds}: p50 {late['p50']} ms, p99 {late['p99']} ms"
            )
    is_good = all(each["is_exact"] and each["parked"] == args.keys for each in runs)
    return Found({"exact": is_good, "runs": runs}, is_good)


async def _run(args: argparse.Namespace, stand: Stand, track: Track, load: Load) -> dict[str, Any]:
    contestant = Contestant("subject", "late", "")
    contest = await track.contest(contestant)
    worker = await track.start(contestant, contest)
    epoch_s = time.time() - time.monotonic()
    heard: list[Heard] = []
    try:
        await track.await_members(contest, 1)
        await _fill(args, stand, contest, load)
        async with asyncio.timeout(args.lead + args.stretch + STOP_S_MAX):
            listening = asyncio.create_task(
                track.judge.listen(contest.output, contest.partitions, args.keys, heard)
            )
            try:
                while not listening.done():
                    await asyncio.wait([listening], timeout=1.0)
                    stand.progress.show("retried", len(heard), args.keys)
                    worker.check()
                await listening
            finally:
                listening.cancel()
                await asyncio.wait([listening])
        usage = worker.usage()
        await worker.stop()
    except TimeoutError:
        worker.check()
        raise worker.error(f"{len(heard)} of {args.keys} keys were retried in time") from None
    finally:
        await worker.kill()
    verdict, _ = await track.verdict(contest)
    due_ms = await _promised(contest)
    parked = [each for each in heard if each.told["account"] in due_ms]
    return {
        "parked": len(parked),
        "late_ms": percentiles([each.told["at_ms"] - due_ms[_key(each)] for each in parked]),
        "committed_late_ms": percentiles(
            [(each.at_s + epoch_s) * 1000 - due_ms[_key(each)] for each in parked]
        ),
        "early": sum(each.told["at_ms"] < due_ms[_key(each)] - 1 for each in parked),
        "retries_per_s": round(args.keys / args.stretch, 1),
        "rss_mb_max": round(usage.rss_mb_max, 1),
        "cpu_s": usage.cpu_s,
        "is_exact": verdict.is_exact,
    }


async def _fill(args: argparse.Namespace, stand: Stand, contest: Contest, load: Load) -> None:
    """One message for each key; due over the stretch, in no order of their names."""
    due_from_ms = int((time.time() + args.lead) * 1000)
    step_ms = args.stretch * 1000 / args.keys

    def due(message: Message) -> dict[str, int]:
        place = account_number(message.account) * 7_919 % args.keys
        return {"due_ms": due_from_ms + int(place * step_ms)}

    filler = Filler(stand.servers, load, more=due)
    await filler.start()
    try:
        await filler.fill(contest.source)
    finally:
        await filler.stop()


def _key(heard: Heard) -> str:
    return str(heard.told["account"])


async def _promised(contest: Contest) -> dict[str, int]:
    """Key -> its last due time, epoch ms, of every key that was ever parked."""
    due_ms = {}
    for _, row_key, raw in await changes(contest, "parked_keys"):
        if raw is not None:
            due_ms[split_parked_key(row_key)[1]] = orjson.loads(raw)["due_ms"]
    return due_ms


def show(values: Mapping[str, Any]) -> str:
    """A round a line."""
    rows: list[tuple[str, ...]] = [
        ("parked keys", "retries/s", "p50 ms", "p99 ms", "max ms", "committed p99 ms")
    ]
    rows += [
        (
            f"{each['parked']:,}",
            f"{each['retries_per_s']:,.0f}",
            *(f"{each['late_ms'][what]:.1f}" for what in ("p50", "p99", "max")),
            f"{each['committed_late_ms']['p99']:.1f}",
        )
        for each in values["runs"]
    ]
    return aligned(rows)


BENCHMARK = Benchmark(
    name="lateness",
    summary="How long after its due time a parked message is tried, with very many keys parked.",
    numbers={
        "messages": Number(0, 0, 0, "not used: every key gets one"),
        "keys": Number(200, 100_000, 100_000, "parked keys, one message each"),
        "partitions": Number(4, 4, 4, "of each topic"),
        "rounds": Number(1, 1, 3, "all of it so often"),
        "lead": Number(8.0, 25.0, 40.0, "seconds to park them all before the first is due"),
        "stretch": Number(2.0, 45.0, 60.0, "seconds over which they come due"),
    },
    measure=measure,
    minutes=(1.5, 6.0),
    show=show,
)
