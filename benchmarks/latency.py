"""`scripts/bench latency`: from sending a message to its committed event, at a given pace."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.engine.contestants import CONTESTANTS
from benchmarks.engine.harness import add_only, check_only
from benchmarks.figures import percentiles, spread
from benchmarks.frame import Benchmark, Found, Number, Stand
from benchmarks.judge import JudgeError
from benchmarks.load import Load
from benchmarks.progress import aligned
from benchmarks.race import PLAIN, Conditions, Track
from benchmarks.worker import WorkerError

# Who is this far behind does not keep the pace; ours has to, however busy the machine is.
OTHERS = Conditions(follow_s_max=15.0)


async def measure(args: argparse.Namespace, stand: Stand) -> Found:
    """Every contestant at the pace, and ours again where there is next to nothing to do."""
    load = Load(args.messages, args.keys, args.partitions, args.seed)
    runs = [(name, args.rate) for name in args.only]
    if "ours" in args.only:
        runs.append(("ours", args.idle_rate))
    found: dict[str, dict[str, Any]] = {}
    is_good = True
    async with Track(stand, load) as track:
        for number in range(args.rounds):
            for name, rate in runs:
                label = f"{name}-{rate:g}"
                messages = min(args.messages, int(rate * args.seconds))
                each = found.setdefault(label, {"contestant": name, "rate": rate, "rounds": []})
                if "failed" in each:
                    continue
                stand.progress.say(f"round {number + 1}/{args.rounds} {label}")
                try:
                    race = await track.latencies(
                        CONTESTANTS[name], messages, rate, PLAIN if name == "ours" else OTHERS
                    )
                except (WorkerError, JudgeError) as error:
                    # A contestant that cannot keep the pace is a finding, unless it is ours.
                    each["failed"] = str(error).splitlines()[0]
                    is_good &= name != "ours"
                    continue
                is_good &= race.verdict.is_exact
                each["rounds"].append(
                    {
                        "messages": len(race.ms),
                        **(percentiles(list(race.ms.values())) or {}),
                        "is_exact": race.verdict.is_exact,
                        "verdict": asdict(race.verdict),
                    }
                )
    for each in found.values():
        for part in ("p50", "p99"):
            each[part] = spread([one[part] for one in each["rounds"]])
        each["exact"] = all(one["is_exact"] for one in each["rounds"]) if each["rounds"] else None
    return Found({"runs": found}, is_good)


def show(values: Mapping[str, Any]) -> str:
    """A run a line."""
    rows = [("contestant", "messages/s", "p50 ms", "p99 ms", "(min - max)", "exact")]
    for each in values["runs"].values():
        if "failed" in each:
            rows.append((each["contestant"], f"{each['rate']:g}", each["failed"], "", "", ""))
            continue
        p50, p99 = each["p50"], each["p99"]
        rows.append(
            (
                each["contestant"],
                f"{each['rate']:g}",
                f"{p50['median']:.1f}",
                f"{p99['median']:.1f}",
                f"({p99['min']:.1f} - {p99['max']:.1f})",
                "yes" if each["exact"] else "NO",
            )
        )
    return aligned(rows)


BENCHMARK = Benchmark(
    name="latency",
    summary="From sending a message to its committed event being readable, at a steady pace.",
    numbers={
        "messages": Number(200, 10_000, 30_000, "messages of a run, at most"),
        "keys": Number(50, 1_000, 1_000, "accounts"),
        "partitions": Number(4, 4, 4, "of each topic"),
        "rounds": Number(1, 2, 3, "each contestant once in each"),
        "rate": Number(200, 1_000, 1_000, "messages a second"),
        "idle_rate": Number(50, 20, 20, "messages a second of the run that is almost idle"),
        "seconds": Number(1.0, 8.0, 20.0, "of a run, at most"),
    },
    measure=measure,
    minutes=(2.5, 6.0),
    add_options=lambda parser: add_only(
        parser, ("ours", "plain-batches", "stock-at-least-once", "stock-exactly-once")
    ),
    check=check_only,
    show=show,
)
