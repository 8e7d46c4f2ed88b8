"""`scripts/bench growth`: how throughput and memory change when one thing grows.

Everything else stays as in the engine benchmark. Each point is one race of our engine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.engine.changelogs import changelog
from benchmarks.engine.contest import Contest
from benchmarks.engine.contestants import CONTESTANTS
from benchmarks.frame import Benchmark, Found, Number, Size, Stand
from benchmarks.judge import JudgeError
from benchmarks.load import Load
from benchmarks.progress import aligned
from benchmarks.race import Conditions, Round, Track
from benchmarks.tables import Row, Writer, make_topics
from benchmarks.worker import WorkerError

OURS = CONTESTANTS["ours"]
# A topic of large messages holds no more than so much.
TOPIC_BYTES_MAX = 200_000_000
# A record without padding: key, value, headers.
RECORD_BYTES = 100
OPEN_S_MAX = 300.0

#: What grows -> its values at each size, beside the one that it has while others grow.
POINTS: dict[str, dict[str, tuple[int, ...]]] = {
    "keys": {
        Size.TINY: (1,),
        Size.QUICK: (1, 100, 10_000, 1_000_000),
        Size.FULL: (1, 10, 100, 10_000, 100_000, 1_000_000),
    },
    "rows": {
        Size.TINY: (500,),
        Size.QUICK: (1_000_000,),
        Size.FULL: (100_000, 1_000_000, 5_000_000),
    },
    "partitions": {Size.TINY: (1,), Size.QUICK: (1, 16, 64), Size.FULL: (1, 2, 8, 16, 64)},
    "bytes": {
        Size.TINY: (1_000,),
        Size.QUICK: (1_000, 10_000),
        Size.FULL: (1_000, 10_000, 100_000),
    },
    "workers": {Size.TINY: (2,), Size.QUICK: (2, 4), Size.FULL: (2, 3, 4)},
    "backlog": {
        Size.TINY: (500,),
        Size.QUICK: (1_000_000,),
        Size.FULL: (10_000, 1_000_000, 3_000_000),
    },
}


@dataclass(frozen=True, slots=True)
class Point:
    """One race.

    Attributes:
        load: of the race.
        rows: that the table already has.
        workers: at once.
    """

    load: Load
    rows: int = 0
    workers: int = 1


def point(args: argparse.Namespace, what: str, value: int) -> Point:
    """The race in which `what` is `value`, and everything else as usual."""
    load = partial(Load, seed=args.seed)
    messages, keys, partitions = args.messages, args.keys, args.partitions
    match what:
        case "keys":
            return Point(load(messages, value, partitions))
        case "rows":
            return Point(load(messages, keys, partitions), rows=value)
        case "partitions":
            return Point(load(messages, keys, value))
        case "bytes":
            fewer = min(messages, TOPIC_BYTES_MAX // value)
            return Point(load(fewer, keys, partitions, padding_bytes=max(0, value - RECORD_BYTES)))
        case "workers":
            return Point(load(messages, keys, partitions), workers=value)
        case _:
            return Point(load(value, keys, partitions))


def usual(args: argparse.Namespace) -> dict[str, int]:
    """What grows -> what it is while others grow."""
    return {
        "keys": args.keys,
        "rows": 0,
        "partitions": args.partitions,
        "bytes": RECORD_BYTES,
        "workers": 1,
        "backlog": args.messages,
    }


async def measure(args: argparse.Namespace, stand: Stand) -> Found:
    """Every point of everything that grows; the one that they all share once a round."""
    found: dict[str, list[dict[str, Any]]] = {what: [] for what in args.only}
    is_good = True

    async def take(label: str, where: Point) -> dict[str, Any]:
        nonlocal is_good
        try:
            race = await _race(args, stand, where, label)
        except (WorkerError, JudgeError) as error:
            # A point that breaks it is a finding; the others shall still be there.
            stand.progress.say(f"{label}: failed: {error}")
            is_good = False
            return {"failed": str(error).splitlines()[0]}
        is_good &= race.is_exact is not False
        stand.progress.say(f"{label}: {race.messages_per_s} messages/s")
        return asdict(race)

    for number in range(args.rounds):
        label = f"round {number + 1}/{args.rounds}"
        shared = await take(f"{label} as usual", point(args, "workers", 1))
        for what in args.only:
            found[what].append({"value": usual(args)[what], **shared})
            for value in POINTS[what][args.size]:
                taken = await take(f"{label} {what} {value:,}", point(args, what, value))
                found[what].append({"value": value, **taken})
    for points in found.values():
        points.sort(key=lambda each: int(each["value"]))
    return Found({"growth": found, "exact": is_good}, is_good)


async def _race(args: argparse.Namespace, stand: Stand, where: Point, label: str) -> Round:
    async with Track(stand, where.load, args.seconds) as track, Writer(stand.servers) as writer:
        prepare = partial(_write_rows, writer, where.rows) if where.rows else None
        conditions = Conditions(
            workers=where.workers, prepare=prepare, first_effect_s_max=OPEN_S_MAX
        )
        return await track.race(OURS, label, conditions)


async def _write_rows(writer: Writer, count: int, contest: Contest) -> None:
    """Rows of accounts that nobody uses."""
    await make_topics(contest)

    def rows() -> Iterator[Row]:
        for number in range(count):
            yield number % contest.partitions, b"row-%09d" % number, b'{"count":0,"total":0}'

    await writer.write(changelog(contest, "rows"), rows())


def show(values: Mapping[str, Any]) -> str:
    """A point a line."""
    rows: list[Sequence[str]] = [("what grows", "to", "messages/s", "us CPU/msg", "RSS MiB")]
    for what, points in values["growth"].items():
        for each in points:
            if "failed" in each:
                rows.append((what, f"{each['value']:,}", each["failed"], "", ""))
                continue
            speed, cost = each["messages_per_s"], each["cpu_us_per_message"]
            rows.append(
                (
                    what,
                    f"{each['value']:,}",
                    f"{speed:,.0f}" if speed else "-",
                    f"{cost:.1f}" if cost else "-",
                    f"{each['rss_mb_max']:.0f}",
                )
            )
    return aligned(rows)


def _add_only(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(POINTS),
        help=f"what is to grow, separated by commas, of: {', '.join(POINTS)}",
    )


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if unknown := set(args.only).difference(POINTS):
        parser.error(f"--only: nothing of that name grows: {', '.join(sorted(unknown))}")


BENCHMARK = Benchmark(
    name="growth",
    summary="Throughput and memory of our engine while keys, table rows, partitions, message size, "
    "workers or the backlog grow.",
    numbers={
        "messages": Number(1_000, 100_000, 200_000, "messages of a race"),
        "keys": Number(50, 1_000, 1_000, "accounts, where they do not grow"),
        "partitions": Number(4, 4, 4, "of each topic, where they do not grow"),
        "rounds": Number(1, 1, 2, "every point once in each"),
        "seconds": Number(60.0, 5.0, 10.0, "of a race, at most"),
    },
    measure=measure,
    minutes=(3.5, 18.0),
    add_options=_add_only,
    check=_check,
    show=show,
)
