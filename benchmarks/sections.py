"""What docs/performance.md says of each result, as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """A table; the first columns, with words in them, stand left, the others right."""
    rule = [*["---"] * words, *["---:"] * (len(head) - words)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def number(value: float | None, spec: str = ",.0f") -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:{spec}}"


def span(found: Mapping[str, float] | None, spec: str = ",.0f") -> str:
    """Median, and the range where there is one."""
    if not found:
        return "-"
    middle = f"{found['median']:{spec}}"
    if found["min"] == found["max"]:
        return middle
    return f"{middle} ({found['min']:{spec}} to {found['max']:{spec}})"


# -- tables --------------------------------------------------------------------------------------


def engine(result: Result) -> str:
    rows = []
    for name, found in result["contestants"].items():
        if "rounds" not in found:
            rows.append((name, *["failed" if "failed" in found else "absent"], *["-"] * 5))
            continue
        ratios = found["ratio_to"]
        rows.append(
            (
                name,
                span(found["messages_per_s"]),
                span(ratios.get("stock-exactly-once"), ".1f"),
                span(ratios.get("stock-at-least-once"), ".1f"),
                span(ratios.get("plain-batches"), ".2f"),
                span(found["cpu_us_per_message"], ".1f"),
                number(found["rss_mb_max"]),
            )
        )
    head = ("", "messages/s", "x stock exactly-once", "x stock at-least-once", "x plain batches")
    return (
        f"{result['rounds']} rounds of {result['messages']:,} messages over {result['keys']:,} "
        f"keys and {result['partitions']} partitions; median, and least to most.\n\n"
        + markdown((*head, "CPU us/message", "RSS MiB"), rows)
    )


def latency(result: Result) -> str:
    rows = [
        (
            each["contestant"],
            f"{each['rate']:,g}",
            *(
                ("did not keep the pace", "-")
                if "failed" in each
                else (span(each["p50"], ".1f"), span(each["p99"], ".1f"))
            ),
        )
        for each in result["runs"].values()
    ]
    return markdown(("", "messages/s", "p50 ms", "p99 ms"), rows)


def parallel(result: Result) -> str:
    rows = []
    for row in result["rows"]:
        theirs, ours = (row["contestants"].get(each) for each in ("parallel-consumer", "ours"))
        rows.append(
            (
                row["work"],
                f"{row['keys']:,}",
                f"{row['messages']:,}",
                span(theirs["seconds"], ".2f") if theirs else "absent",
                span(ours["seconds"], ".2f"),
                span(row["ratio"], ".2f"),
            )
        )
    head = ("work", "keys", "messages", "Parallel Consumer s", "ours s", "times as fast")
    return f"At most {result['concurrency']} messages at once.\n\n" + markdown(head, rows)


def isolation(result: Result) -> str:
    rows = [
        (
            what,
            *(
                span(_spread_of(result["runs"][name], key), spec)
                for key, spec in (("healthy_per_s", ",.0f"), ("p50", ".1f"), ("p99", ".1f"))
            ),
        )
        for what, name in (("no key parked", "healthy"), ("every tenth key parked", "parked"))
    ]
    ratios = (result["ratio"][key] for key in ("healthy_per_s", "p50", "p99"))
    rows.append(("ratio", *(span(each, ".2f") for each in ratios)))
    sick = result["sick"]
    return (
        f"{result['messages']:,} messages over {result['keys']:,} keys; "
        f"{sick['parked_keys']:,} keys parked with {sick['parked_messages']:,} messages; "
        f"latencies at {result['rate']:,} messages/s.\n\n"
        + markdown(("healthy keys", "messages/s", "p50 ms", "p99 ms"), rows)
    )


def lateness(result: Result) -> str:
    rows = [
        (
            f"{each['parked']:,}",
            f"{each['retries_per_s']:,.0f}",
            *(f"{each['late_ms'][key]:,.1f}" for key in ("p50", "p99", "max")),
            f"{each['committed_late_ms']['p99']:,.1f}",
            number(each["rss_mb_max"]),
        )
        for each in result["runs"]
    ]
    head = ("keys parked", "due/s", "p50 ms late", "p99", "most", "committed p99", "RSS MiB")
    return markdown(head, rows)


def memory(result: Result) -> str:
    rows = [
        (
            f"{'kept' if name == 'kept' else 'expires after '}"
            f"{'' if name == 'kept' else str(each['inbox_retention_ms'] // 1000) + ' s'}",
            f"{each['parked_messages']:,} on {each['parked_keys']:,}",
            f"{each['inbox_rows']:,}",
            number(each["rss_mb_max"]),
            number(each["rss_mb_at_end"]),
            number(each["pause_ms_max"], ".1f"),
            number(each["pause_ms_max_opening"], ".1f"),
            f"{each['latency_ms']['p99']:.1f}",
        )
        for name, each in result["runs"].items()
    ]
    head = ("inbox", "parked messages on keys", "inbox rows", "RSS MiB most", "at the end")
    return markdown((*head, "pause ms most", "while opening", "p99 ms"), rows)


def recovery(result: Result) -> str:
    starts = [
        *((f"ours, {name.replace('_', ' ')}", each) for name, each in result["large"].items()),
        *((f"{n}, rebuild", each) for n, runs in result["pairs"].items() for each in runs),
    ]
    rows = [
        (
            name,
            f"{each['rows']:,}",
            f"{each['seconds']:.1f}",
            f"{each['rows_per_s']:,}" if "rebuild" in name else "-",
            number(each["open_ms_max"]),
            number(each["rss_mb_max"]),
        )
        for name, each in starts
    ]
    head = ("start", "rows", "s to the last probe", "rows/s", "opening ms, slowest", "RSS MiB")
    lines_seen = result["large"]["rebuild"]["progress"]
    shown = "".join(f"\n    {line}" for line in lines_seen[:2])
    return (
        markdown(head, rows)
        + f"\nA rebuild is {span(result['ratio'], '.1f')} times as fast as stock Faust's.\n"
        + (f"Its progress as the log tells it:\n{shown}\n" if shown else "")
    )


def failover(result: Result) -> str:
    rows = [
        (
            {"steady": "nothing", "join": "a worker joins", "kill": "a worker is killed"}.get(
                what, "a worker leaves"
            ),
            f"{found['moved']}",
            number(found["stall_ms_moved"]),
            f"{found['stayed']}",
            number(found["stall_ms_stayed"]),
            number(run["killed_replaced_ms"]) if what == "kill" else "-",
        )
        for run in result["runs"]
        for what, found in run["spans"].items()
    ]
    head = (
        "what happens",
        "moved",
        "stall ms",
        "stayed",
        "stall ms",
        "all answered again after ms",
    )
    return (
        f"{result['rate']} messages/s over {result['partitions']} partitions; session timeout "
        f"{result['session_timeout_ms']:,} ms.\n\n" + markdown(head, rows)
    )


def growth(result: Result) -> str:
    rows = [
        (
            f"{what} {each['value']:,}",
            *(
                ("failed", "-", "-")
                if "failed" in each
                else (
                    number(each["messages_per_s"]),
                    number(each["cpu_us_per_message"], ".1f"),
                    number(each["rss_mb_max"]),
                )
            ),
        )
        for what, points in result["growth"].items()
        for each in points
    ]
    return (
        f"Where it does not grow: {result['messages']:,} messages, {result['keys']:,} keys, "
        f"{result['partitions']} partitions, 1 worker.\n\n"
        + markdown(("", "messages/s", "CPU us/message", "RSS MiB of the largest"), rows)
    )


def _spread_of(runs: Sequence[Mapping[str, Any]], key: str) -> dict[str, float] | None:
    values = sorted(each[key] for each in runs if each[key] is not None)
    if not values:
        return None
    return {"min": values[0], "median": values[len(values) // 2], "max": values[-1]}


SECTIONS: dict[str, Callable[[Result], str]] = {
    "engine": engine,
    "latency": latency,
    "parallel": parallel,
    "isolation": isolation,
    "lateness": lateness,
    "memory": memory,
    "recovery": recovery,
    "failover": failover,
    "growth": growth,
}
