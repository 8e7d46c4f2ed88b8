"""`scripts/bench parallel`: messages that take 0 to 5 ms, over few and many keys.

The Parallel Consumer works in key order and keeps neither state nor effects; its time is
what its own program says, from the first message begun to the last one done, commits left
out. Ours does the same waiting and the whole work of the engine benchmark on top; its time
is from the first handler begun to the last committed event that a reader sees.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.engine.contestants import Contestant
from benchmarks.figures import spread
from benchmarks.frame import Benchmark, Found, Number, Stand
from benchmarks.load import Load
from benchmarks.parallel.java import JavaError, command
from benchmarks.progress import aligned
from benchmarks.race import FIRST_EFFECT_S_MAX, Track
from benchmarks.subject import WORK_MS_MAX
from benchmarks.worker import Worker

PARALLEL_CONSUMER = "parallel-consumer"
OURS = "ours"
# For a single key a message takes its 2.5 ms and a bit; beside other work more.
MESSAGE_S_MAX = 0.02
NOOP = "do nothing"


async def measure(args: argparse.Namespace, stand: Stand) -> Found:
    """Every row of the table, both in turn."""
    rows: list[dict[str, Any]] = []
    try:
        command()
        contestants = [PARALLEL_CONSUMER, OURS]
        absent = {}
    except JavaError as error:
        contestants, absent = [OURS], {PARALLEL_CONSUMER: str(error)}
    for keys in _key_counts(args.keys):
        load = Load(args.messages, keys, args.partitions, args.seed)
        rows.append(await _row(args, stand, load, WORK_MS_MAX, contestants))
    load = Load(args.noop_messages, args.keys, args.partitions, args.seed)
    rows.append(await _row(args, stand, load, 0, contestants))
    is_good = all(each["exact"] for row in rows for each in row["contestants"].values())
    values: dict[str, Any] = {"rows": rows, "absent": absent}
    return Found(values, is_good)


def _key_counts(most: int) -> list[int]:
    """1, 10, 100 and `most`, as far as they are smaller."""
    return sorted({*(each for each in (1, 10, 100) if each < most), most})


async def _row(
    args: argparse.Namespace, stand: Stand, load: Load, most_ms: int, contestants: Sequence[str]
) -> dict[str, Any]:
    what = f"0-{most_ms} ms" if most_ms else NOOP
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    async with Track(stand, load) as track:
        for number in range(args.rounds):
            for name in contestants if number % 2 == 0 else contestants[::-1]:
                run = _theirs if name == PARALLEL_CONSUMER else _ours
                found[name].append(await run(args, stand, track, load, most_ms))
                stand.progress.say(
                    f"{what}, {load.keys:,} keys, round {number + 1}/{args.rounds}: "
                    f"{name} {found[name][-1]['seconds']:.2f} s"
                )
    ratio = [
        theirs["seconds"] / mine["seconds"]
        for theirs, mine in zip(found.get(PARALLEL_CONSUMER, []), found[OURS], strict=False)
    ]
    return {
        "work": what,
        "keys": load.keys,
        "messages": load.messages,
        "contestants": {
            name: {
                "seconds": spread([each["seconds"] for each in runs]),
                "messages_per_s": spread([load.messages / each["seconds"] for each in runs]),
                "exact": all(each["is_exact"] for each in runs),
                "runs": runs,
            }
            for name, runs in found.items()
        },
        # How many times as fast ours is.
        "ratio": spread(ratio),
    }


def _seconds_max(load: Load) -> float:
    return FIRST_EFFECT_S_MAX + load.messages * MESSAGE_S_MAX


async def _theirs(
    args: argparse.Namespace, stand: Stand, track: Track, load: Load, most_ms: int
) -> dict[str, Any]:
    contest = await track.contest(Contestant("", PARALLEL_CONSUMER, ""))
    await track.fill(contest)
    numbers = (str(load.messages), str(args.concurrency), str(most_ms))
    log = stand.folder / f"{contest.group}.log"
    worker = await Worker.start(
        command(contest.servers, contest.source, contest.group, *numbers), log
    )
    try:
        async with asyncio.timeout(_seconds_max(load)):
            status = await worker.wait()
    except TimeoutError:
        raise worker.error(f"not done in {_seconds_max(load):.0f} s") from None
    finally:
        await worker.kill()
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
    if status or not lines:
        raise worker.error(f"ended with status {status}")
    told = json.loads(lines[-1])
    committed = sum((await track.judge.committed(contest.group, contest.source)).values())
    return {
        "seconds": (told["ended_ms"] - told["begun_ms"]) / 1000,
        "is_exact": told["handled"] == load.messages == committed and not told["out_of_order"],
        **told,
        "committed": committed,
    }


async def _ours(
    args: argparse.Namespace, stand: Stand, track: Track, load: Load, most_ms: int
) -> dict[str, Any]:
    # The bound is one for each partition here, and one for the whole process there.
    each = max(1, args.concurrency // load.partitions)
    contestant = Contestant(
        "subject",
        "work" if most_ms else "deposit",
        "",
        arguments=("--set", f"ENGINE_CONCURRENCY={each}"),
    )
    contest = await track.contest(contestant)
    await track.fill(contest)
    epoch_s = time.time() - time.monotonic()
    worker = await track.start(contestant, contest)
    try:
        async with asyncio.timeout(_seconds_max(load)):
            heard = await track.judge.listen(contest.output, contest.partitions, load.messages)
        await worker.stop()
    except TimeoutError:
        worker.check()
        raise worker.error(f"not done in {_seconds_max(load):.0f} s") from None
    finally:
        await worker.kill()
    verdict, _ = await track.verdict(contest)
    begun_s = min(each.told["at_ms"] for each in heard) / 1000
    seconds = heard[-1].at_s + epoch_s - begun_s
    return {"seconds": round(seconds, 3), "is_exact": verdict.is_exact}


def show(values: Mapping[str, Any]) -> str:
    """A row a line."""
    head = ("work", "keys", "messages", f"{PARALLEL_CONSUMER} s", "ours s", "times as fast")
    rows: list[Sequence[str]] = [head]
    for row in values["rows"]:
        theirs, ours = (row["contestants"].get(each) for each in (PARALLEL_CONSUMER, OURS))
        rows.append(
            (
                row["work"],
                f"{row['keys']:,}",
                f"{row['messages']:,}",
                f"{theirs['seconds']['median']:.2f}" if theirs else "absent",
                f"{ours['seconds']['median']:.2f}",
                f"{row['ratio']['median']:.2f}" if row["ratio"] else "-",
            )
        )
    return aligned(rows)


BENCHMARK = Benchmark(
    name="parallel",
    summary="Messages that take 0 to 5 ms, over 1 to --keys keys, and messages that take none; "
    "beside the Parallel Consumer in key order.",
    numbers={
        "messages": Number(300, 10_000, 10_000, "messages of a row"),
        "keys": Number(100, 10_000, 10_000, "of the last row; before it 1, 10 and 100"),
        "partitions": Number(4, 4, 4, "of each topic"),
        "rounds": Number(1, 1, 3, "both in each, in alternating order"),
        "concurrency": Number(20, 100, 100, "messages at once"),
        "noop_messages": Number(1_000, 200_000, 200_000, "messages of the row that does nothing"),
    },
    measure=measure,
    minutes=(3.0, 8.0),
    show=show,
)
