"""`scripts/bench isolation`: what parked keys cost the healthy ones, paired in one run.

The same records twice in turn: once no account is sick, once every tenth is: its first
message is parked and retried all the time, all its further messages are parked behind it.
Healthy messages a second and their latencies are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.engine.contest import Contest
from benchmarks.engine.contestants import Contestant
from benchmarks.figures import percentiles, spread
from benchmarks.frame import Benchmark, Found, Number, Stand
from benchmarks.judge import no_account
from benchmarks.load import Load
from benchmarks.progress import aligned
from benchmarks.race import Conditions, Track
from benchmarks.subject import is_sick
from benchmarks.tables import count_rows

_WORK = "the engine benchmark's work"
SUBJECTS = {
    "healthy": Contestant("subject", "deposit", f"{_WORK}, no key parked"),
    "parked": Contestant("subject", "sick", f"{_WORK}, every tenth key parked and retried"),
}


async def measure(args: argparse.Namespace, stand: Stand) -> Found:
    """Throughput and latencies with and without parked keys, in turn."""
    load = Load(args.messages, args.keys, args.partitions, args.seed)
    sick = [message for message in load if is_sick(message.account)]
    expected = {"parked_keys": len({m.account for m in sick}), "parked_messages": len(sick)}
    healthy = {m.message_id for m in load if not is_sick(m.account)}
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in SUBJECTS}
    async with Track(stand, load) as track:
        await track.race(SUBJECTS["healthy"], "warm-up")
        for number in range(args.rounds):
            for name in list(SUBJECTS) if number % 2 == 0 else list(SUBJECTS)[::-1]:
                label = f"round {number + 1}/{args.rounds} {name}"
                rounds[name].append(await _round(args, track, name, label, healthy))
                stand.progress.say(f"{label}: {rounds[name][-1]['healthy_per_s']} healthy/s")
    is_exact = all(
        each["is_exact"] and each["parked"] == (expected if name == "parked" else {})
        for name, found in rounds.items()
        for each in found
    )
    values = {
        "sick": expected,
        "ratio": {
            what: spread(
                [
                    parked[what] / without[what]
                    for parked, without in zip(rounds["parked"], rounds["healthy"], strict=True)
                    if parked[what] and without[what]
                ]
            )
            for what in _FIGURES
        },
        "exact": is_exact,
        "runs": rounds,
    }
    return Found(values, is_exact)


async def _round(
    args: argparse.Namespace, track: Track, name: str, label: str, healthy: set[str]
) -> dict[str, Any]:
    is_silent = is_sick if name == "parked" else no_account
    parked: dict[str, int] = {}

    async def look(contest: Contest, workers: object) -> None:
        if name == "parked":
            parked.update(await count_rows(contest, "parked_keys", "parked_messages"))

    conditions = Conditions(is_silent=is_silent, before_stop=look)
    race = await track.race(SUBJECTS[name], label, conditions)
    pace = await track.latencies(
        SUBJECTS[name], args.latency_messages, args.rate, Conditions(is_silent=is_silent)
    )
    rate = race.messages_per_s
    if rate is not None and name == "healthy":
        # Where none is parked all messages lead to events; healthy ones are so many of them.
        rate = round(rate * len(healthy) / args.messages, 1)
    return {
        "healthy_per_s": rate,
        **(percentiles([ms for each, ms in pace.ms.items() if each in healthy]) or {}),
        "rss_mb_max": race.rss_mb_max,
        "parked": parked,
        "is_exact": bool(race.is_exact and race.is_finished and pace.verdict.is_exact),
        "race": asdict(race),
    }


def show(values: Mapping[str, Any]) -> str:
    """The two side by side, and their ratio."""
    rows: list[Sequence[str]] = [("", "healthy/s", "p50 ms", "p99 ms")]
    for name, rounds in values["runs"].items():
        medians = [spread([each[what] for each in rounds if each[what]]) for what in _FIGURES]
        rows.append((name, *(f"{each['median']:,.1f}" if each else "-" for each in medians)))
    ratios = [values["ratio"][what] for what in _FIGURES]
    rows.append(("ratio", *(f"{each['median']:.2f}" if each else "-" for each in ratios)))
    return aligned(rows)


_FIGURES = ("healthy_per_s", "p50", "p99")

BENCHMARK = Benchmark(
    name="isolation",
    summary="Throughput and latency of healthy keys while every tenth key is parked, beside none.",
    numbers={
        "messages": Number(1_000, 150_000, 300_000, "messages of the topic"),
        "keys": Number(50, 1_000, 1_000, "accounts, every tenth of them sick"),
        "partitions": Number(4, 4, 4, "of each topic"),
        "rounds": Number(1, 2, 4, "with and without in each, in alternating order"),
        "latency_messages": Number(100, 8_000, 20_000, "messages of a latency run"),
        "rate": Number(200, 1_000, 1_000, "messages a second of a latency run"),
    },
    measure=measure,
    minutes=(2.0, 6.0),
    show=show,
)
