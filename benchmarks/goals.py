"""The goals of docs/performance.md beside what was found, in every run and not in the middle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.plot import short
from benchmarks.sections import markdown, number

Result = Mapping[str, Any]


def goals(results: Mapping[str, Result]) -> str:
    """Every goal beside the newest finding, in every run and not only in the middle."""
    rows = [
        (name, goal, found, {True: "yes", False: "**no**", None: "-"}[is_met])
        for name, goal, found, is_met in _goals(results)
    ]
    return markdown(("", "goal", "found", "met"), rows, words=4)


Goal = tuple[str, str, str, bool | None]


def _at_least(name: str, goal: str, value: float | None, bound: float, shown: str) -> Goal:
    return (
        name,
        goal,
        shown if value is not None else "-",
        None if value is None else value >= bound,
    )


def _at_most(name: str, goal: str, value: float | None, bound: float, shown: str) -> Goal:
    return (
        name,
        goal,
        shown if value is not None else "-",
        None if value is None else value <= bound,
    )


def _goals(results: Mapping[str, Result]) -> Iterator[Goal]:
    yield from _goals_of_engine(results.get("engine"))
    yield from _goals_of_keys(results)
    yield from _goals_of_size(results)
    latency_found = (results.get("latency") or {}).get("runs", {}).get("ours-1000", {})
    for part, bound in (("p50", 20), ("p99", 50)):
        found = latency_found.get(part) or {}
        worst = found.get("max")
        text = f"1,000 messages/s: {part} at most {bound} ms"
        yield _at_most("P8", text, worst, bound, f"{number(worst, '.1f')} ms")
    failover_found = results.get("failover")
    if failover_found is not None:
        replaced = [run["killed_replaced_ms"] for run in failover_found["runs"]]
        worst = max((each for each in replaced if each is not None), default=None)
        bound = failover_found["session_timeout_ms"] + 2_000
        text = f"a killed worker is replaced in at most {bound:,} ms"
        yield _at_most("", text, worst, bound, f"{number(worst)} ms")


def _goals_of_engine(result: Result | None) -> Iterator[Goal]:
    ours = ((result or {}).get("contestants", {})).get("ours", {})
    for name, to, bound in (
        ("P1", "stock-exactly-once", 25),
        ("P1", "stock-at-least-once", 20),
        ("P2", "plain-batches", 0.75),
    ):
        least = (ours.get("ratio_to", {}).get(to) or {}).get("min")
        text = f"at least {bound:g} times {to.replace('-', ' ')}, in every round"
        yield _at_least(name, text, least, bound, f"{number(least, '.2f')} in the slowest round")


def _goals_of_keys(results: Mapping[str, Result]) -> Iterator[Goal]:
    rows = (results.get("parallel") or {}).get("rows", [])
    ratios = [row["ratio"]["min"] for row in rows if row["ratio"] and row["work"] != "do nothing"]
    worst = min(ratios, default=None)
    text = "every row as fast as the Parallel Consumer"
    yield _at_least("P3", text, worst, 1, f"{number(worst, '.2f')} times in the slowest row")
    ratio = (results.get("isolation") or {}).get("ratio", {})
    speed = (ratio.get("healthy_per_s") or {}).get("min")
    text = "10 % of keys parked: healthy ones keep 90 % of throughput"
    yield _at_least("P4", text, speed, 0.9, f"{number(speed, '.2f')} in the worst round")
    late = (ratio.get("p99") or {}).get("max")
    text = "10 % of keys parked: p99 of healthy ones at most 1.1 times"
    yield _at_most("P4", text, late, 1.1, f"{number(late, '.2f')} times in the worst round")


def _goals_of_size(results: Mapping[str, Result]) -> Iterator[Goal]:
    runs = (results.get("lateness") or {}).get("runs", [])
    worst = max((run["late_ms"]["p99"] for run in runs), default=None)
    parked = short(runs[0]["parked"]) if runs else "100k"
    text = f"{parked} keys parked: retries at most 100 ms late, p99"
    yield _at_most("P5", text, worst, 100, f"{number(worst, '.1f')} ms")
    found = (results.get("memory") or {}).get("runs", {})
    most = max((run["rss_mb_max"] for run in found.values()), default=None)
    text = "1M parked messages and 1M inbox rows in at most 512 MiB"
    yield _at_most("P6", text, most, 512, f"{number(most)} MiB")
    pause = (found.get("expiring") or {}).get("pause_ms_max")
    text = "no pause above 50 ms while the inbox is cleaned up"
    yield _at_most("P6", text, pause, 50, f"{number(pause, '.1f')} ms")
    large = (results.get("recovery") or {}).get("large", {})
    restart = large.get("restart", {}).get("seconds")
    text = "restart on the same disk with 10M rows in at most 5 s"
    yield _at_most("P7", text, restart, 5, f"{number(restart, '.1f')} s")
    ratio = ((results.get("recovery") or {}).get("ratio") or {}).get("min")
    text = "rebuild at least 5 times as fast as stock Faust"
    yield _at_least("P7", text, ratio, 5, f"{number(ratio, '.1f')} times")
