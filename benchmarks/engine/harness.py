"""`scripts/bench engine`: all contestants in one run, in turn, on one real Kafka."""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.engine.contestants import CONTESTANTS, REFERENCES, WARM_UP
from benchmarks.figures import spread
from benchmarks.frame import Benchmark, Found, Number, Size, Stand
from benchmarks.judge import JudgeError
from benchmarks.load import Load
from benchmarks.progress import aligned
from benchmarks.race import Round, Track
from benchmarks.worker import WorkerError

# A quick run leaves out those that no goal speaks of.
COMPARED = (*REFERENCES, "ours")


async def measure(args: argparse.Namespace, stand: Stand) -> Found:
    """All rounds of all contestants."""
    load = Load(args.messages, args.keys, args.partitions, args.seed)
    present = [name for name in args.only if CONTESTANTS[name].is_present]
    rounds: dict[str, list[Round]] = defaultdict(list)
    failed: dict[str, str] = {}
    async with Track(stand, load, args.seconds) as track:
        # A broker that has just started is slow; nobody shall be first on it.
        await track.race(CONTESTANTS[WARM_UP], "warm-up")
        for number in range(args.rounds):
            # Each round starts with another one, so that no place in the order is anyone's own.
            first = number % len(args.only)
            for name in [*args.only[first:], *args.only[:first]]:
                if name not in present or name in failed:
                    continue
                label = f"round {number + 1}/{args.rounds} {name}"
                try:
                    rounds[name].append(await track.race(CONTESTANTS[name], label))
                except (WorkerError, JudgeError) as error:
                    failed[name] = str(error)
                    stand.progress.say(f"{label}: failed: {error}")
                else:
                    stand.progress.say(sentence(label, rounds[name][-1]))
    result = {}
    for name in args.only:
        if name not in present:
            found: dict[str, Any] = {"absent": f"there is no {CONTESTANTS[name].path}"}
        elif name in failed:
            found = {"failed": failed[name]}
        else:
            # Ratios pair rounds by place, which a failed reference does not allow.
            found = summary(
                rounds[name],
                {
                    each: rounds[each]
                    for each in REFERENCES
                    if each in rounds and each not in failed
                },
            )
        result[name] = {"work": CONTESTANTS[name].work, **found}
    is_good = all(
        "failed" not in each and each.get("exact") is not False for each in result.values()
    )
    return Found({"contestants": result}, is_good)


def sentence(label: str, found: Round) -> str:
    """One round in one line."""
    speed = f"{found.messages_per_s:,.0f} messages/s" if found.messages_per_s else "too few to tell"
    return f"{label}: {speed}" + (
        f", NOT EXACT: {found.verdict}" if found.is_exact is False else ""
    )


def summary(rounds: Sequence[Round], references: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """A contestant's figures over its rounds.

    Args:
        rounds: of this contestant, at least one.
        references: those that ratios are to -> their rounds, paired with `rounds` by place.
    """
    ratios = {name: spread(_ratios(rounds, theirs)) for name, theirs in references.items()}
    costs = [each.cpu_us_per_message for each in rounds if each.cpu_us_per_message]
    exact = [each.is_exact for each in rounds if each.is_exact is not None]
    return {
        "messages_per_s": spread([each.messages_per_s for each in rounds if each.messages_per_s]),
        "ratio": ratios.get("stock-exactly-once"),
        "ratio_to": ratios,
        "cpu_us_per_message": spread(costs),
        "cpu_s": round(statistics.median(each.cpu_s for each in rounds), 2),
        "rss_mb_max": max(each.rss_mb_max for each in rounds),
        "exact": all(exact) if exact else None,
        "rounds": [asdict(each) for each in rounds],
    }


def _ratios(mine: Sequence[Round], theirs: Sequence[Round]) -> list[float]:
    return [
        one.messages_per_s / other.messages_per_s
        for one, other in zip(mine, theirs, strict=False)
        if one.messages_per_s and other.messages_per_s
    ]


def show(values: Mapping[str, Any]) -> str:
    """The run's figures, a contestant a line, in the order given."""
    head = ("contestant", "messages/s", "(min - max)", "to stock", "to a.l.o.", "to plain")
    rows: list[Sequence[str]] = [(*head, "us CPU/msg", "CPU s", "RSS MB", "exact")]
    for name, found in values["contestants"].items():
        if "rounds" not in found:
            rows.append((name, "absent" if "absent" in found else "FAILED", *[""] * 8))
            continue
        speed = found["messages_per_s"]
        rows.append(
            (
                name,
                _number(speed and speed["median"], ",.0f"),
                f"({speed['min']:,.0f} - {speed['max']:,.0f})" if speed else "",
                *(
                    _number((found["ratio_to"].get(each) or {}).get("median"), ".2f")
                    for each in REFERENCES
                ),
                _number((found["cpu_us_per_message"] or {}).get("median"), ".1f"),
                _number(found["cpu_s"], ".1f"),
                _number(found["rss_mb_max"], ".0f"),
                {True: "yes", False: "NO", None: "-"}[found["exact"]],
            )
        )
    return aligned(rows)


def _number(found: float | None, spec: str) -> str:
    return "-" if found is None else f"{found:{spec}}"


def add_only(parser: argparse.ArgumentParser, default: Sequence[str] | None = None) -> None:
    """`--only`: some contestants of the engine benchmark."""
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=default and list(default),
        help=f"contestants, separated by commas, of: {', '.join(CONTESTANTS)}",
    )


def check_only(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End the process where `--only` names somebody unknown."""
    if args.only is None:
        args.only = list(COMPARED if args.size == Size.QUICK else CONTESTANTS)
    if unknown := set(args.only).difference(CONTESTANTS):
        parser.error(f"--only: no such contestant: {', '.join(sorted(unknown))}")


BENCHMARK = Benchmark(
    name="engine",
    summary="Messages a second and CPU a message of our engine, of stock Faust and of a plain "
    "aiokafka loop, side by side.",
    numbers={
        "messages": Number(2_000, 150_000, 150_000, "messages of the topic"),
        "keys": Number(100, 1_000, 1_000, "accounts"),
        "partitions": Number(4, 4, 4, "of each topic"),
        "rounds": Number(1, 3, 5, "each contestant once in each"),
        "seconds": Number(
            60.0,
            5.0,
            8.0,
            "a contestant that has not finished so long after its first effect is stopped and "
            "judged by what it did",
        ),
    },
    measure=measure,
    minutes=(2.5, 8.0),
    add_options=add_only,
    check=check_only,
    show=show,
)
