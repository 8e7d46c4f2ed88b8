"""Which plots docs/performance.md has of each result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.plot import SERIES, Bar, Line, bars, lines

Result = Mapping[str, Any]


def engine_plots(result: Result) -> dict[str, str]:
    found = [
        Bar(
            name,
            each["messages_per_s"]["median"],
            f"{each['messages_per_s']['median']:,.0f}",
            "ours" if name == "ours" else "theirs",
            each["messages_per_s"]["min"],
            each["messages_per_s"]["max"],
        )
        for name, each in result["contestants"].items()
        if each.get("messages_per_s")
    ]
    return {"engine": bars("Messages a second, one process", found)} if found else {}


def latency_plots(result: Result) -> dict[str, str]:
    found = []
    for each in result["runs"].values():
        if not each["p50"]:
            continue
        label = f"{each['contestant']}, {each['rate']:g}/s"
        ours = "ours" if each["contestant"] == "ours" else "theirs"
        p50, p99 = each["p50"]["median"], each["p99"]["median"]
        found += [
            Bar(label, p50, f"p50 {p50:.1f} ms", ours),
            Bar("", p99, f"p99 {p99:.1f} ms", ours),
        ]
    return {"latency": bars("From sending a message to its event", found)} if found else {}


def parallel_plots(result: Result) -> dict[str, str]:
    found = []
    for row in result["rows"]:
        label = f"{row['work']}, {row['keys']:,} keys"
        for name, series in (("parallel-consumer", "theirs"), ("ours", "ours")):
            each = row["contestants"].get(name)
            if each:
                seconds = each["seconds"]["median"]
                found.append(Bar(label, seconds, f"{name} {seconds:.2f} s", series))
                label = ""
    return {"parallel": bars("Seconds for a row, Parallel Consumer and ours", found)}


def recovery_plots(result: Result) -> dict[str, str]:
    found = [
        Bar(
            f"{name}, {runs[0]['rows']:,} rows",
            runs[0]["rows_per_s"],
            f"{runs[0]['rows_per_s']:,} rows/s",
            "ours" if name == "ours" else "theirs",
        )
        for name, runs in result["pairs"].items()
    ]
    return {"recovery": bars("Rebuild from the changelog, start of the worker included", found)}


_GROWTH_TITLES = {
    "keys": "Throughput over keys",
    "rows": "Throughput over rows in the table before",
    "partitions": "Throughput over partitions of one worker",
    "bytes": "Throughput over bytes of a message",
    "workers": "Throughput over workers",
}


def growth_plots(result: Result) -> dict[str, str]:
    made = {}
    for what, title in _GROWTH_TITLES.items():
        points = _points(result, what, "messages_per_s")
        if len(points) > 1:
            found = [Line("messages/s", points)]
            made[f"growth-{what}"] = lines(title, what, "messages/s", found)
    points = _points(result, "backlog", "rss_mb_max")
    if len(points) > 1:
        found = [Line("RSS MiB", points, SERIES[2])]
        made["growth-backlog"] = lines("Memory over the backlog", "messages", "RSS MiB", found)
    return made


def _points(result: Result, what: str, figure: str) -> list[tuple[float, float]]:
    return sorted(
        (each["value"], each[figure])
        for each in result["growth"].get(what, ())
        if each.get(figure) is not None
    )


PLOTS: dict[str, Callable[[Result], dict[str, str]]] = {
    "engine": engine_plots,
    "latency": latency_plots,
    "parallel": parallel_plots,
    "recovery": recovery_plots,
    "growth": growth_plots,
}
