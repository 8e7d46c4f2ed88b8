"""The benchmarks run, and their judge sees what is wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import MODULES, goals, guard, page, plot, sections
from benchmarks.engine.contestants import CONTESTANTS
from benchmarks.judge import Event, Output, Verdict, judge, model
from benchmarks.load import Load
from bookstore_streams.testing.brokers import KafkaBroker

ROOT = Path(__file__).parents[2]
LOAD = Load(messages=200, keys=5, partitions=2, seed=7)


def everything_committed() -> dict[int, int]:
    numbers = [message.partition for message in LOAD]
    return {partition: numbers.count(partition) for partition in set(numbers)}


def output_of(events: dict[str, list[Event]]) -> Output:
    return Output(offsets={}, events=events)


def some_account(events: dict[str, list[Event]]) -> list[Event]:
    return next(iter(events.values()))


#: Further options where the tiny size would still take too long.
FEWER = {"latency": ["--only", "ours"], "engine": []}


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(MODULES))
def test_a_tiny_run_of_each_benchmark_is_exact(
    name: str, kafka: KafkaBroker, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks", name, "--size", "tiny", *FEWER.get(name, [])]
    ran = subprocess.run(
        [*command, "--broker", kafka.url, "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == out.read_text()
    found = json.loads(ran.stdout)
    assert found["benchmark"] == name
    assert found["command"].startswith(f"scripts/bench {name} --size tiny")
    assert {"at", "commit", "python", "cpu", "cores", "libraries", "seed", "messages"} <= set(found)
    LOOKS.get(name, lambda found: None)(found)
    # What the page would say of it.
    assert sections.SECTIONS[name](found).count("|") > 10
    for drawn in page.plots_of(name, found).values():
        ElementTree.fromstring(drawn)
    assert "| P1 |" in goals.goals({name: found})


def look_at_engine(found: dict[str, Any]) -> None:
    assert list(found["contestants"]) == list(CONTESTANTS)
    for name, each in found["contestants"].items():
        (only_round,) = each["rounds"]
        assert only_round["is_finished"], name
        assert only_round["is_exact"], (name, only_round)
        assert only_round["rss_mb_max"] > 1


def look_at_parallel(found: dict[str, Any]) -> None:
    # The other side needs a JDK; where one is, it has to take part.
    assert bool(found["absent"]) == (shutil.which("javac") is None)
    assert [row["keys"] for row in found["rows"]] == [1, 10, 100, 100]


def look_at_isolation(found: dict[str, Any]) -> None:
    (with_parked,) = found["runs"]["parked"]
    assert with_parked["parked"] == found["sick"]
    assert found["sick"]["parked_messages"] > found["sick"]["parked_keys"] > 0


def look_at_lateness(found: dict[str, Any]) -> None:
    (run,) = found["runs"]
    assert run["parked"] == found["keys"]
    assert run["early"] == 0


def look_at_memory(found: dict[str, Any]) -> None:
    assert list(found["runs"]) == ["kept", "expiring"]
    assert all(run["pause_ms_max"] > 0 for run in found["runs"].values())


def look_at_recovery(found: dict[str, Any]) -> None:
    assert list(found["large"]) == ["rebuild", "restart", "restart_after_kill"]


def look_at_failover(found: dict[str, Any]) -> None:
    (run,) = found["runs"]
    assert run["spans"]["kill"]["moved"] > 0
    assert run["killed_replaced_ms"] > 0


LOOKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "engine": look_at_engine,
    "parallel": look_at_parallel,
    "isolation": look_at_isolation,
    "lateness": look_at_lateness,
    "memory": look_at_memory,
    "recovery": look_at_recovery,
    "failover": look_at_failover,
}


def test_the_same_seed_gives_the_same_messages() -> None:
    assert list(LOAD) == list(LOAD)
    assert list(LOAD) != list(Load(messages=200, keys=5, partitions=2, seed=8))


def test_the_judge_accepts_what_the_committed_messages_lead_to() -> None:
    committed = everything_committed()
    assert judge(LOAD, committed, output_of(model(LOAD))) == Verdict(0, 0, 0, 0)


def test_the_judge_sees_a_lost_event() -> None:
    events = model(LOAD)
    some_account(events).pop()
    assert judge(LOAD, everything_committed(), output_of(events)) == Verdict(1, 0, 0, 0)


def test_the_judge_sees_an_event_that_came_twice() -> None:
    events = model(LOAD)
    some_account(events).append(some_account(events)[-1])
    assert judge(LOAD, everything_committed(), output_of(events)) == Verdict(0, 1, 1, 0)


def test_the_judge_sees_a_wrong_order() -> None:
    events = model(LOAD)
    some_account(events).reverse()
    assert judge(LOAD, everything_committed(), output_of(events)) == Verdict(0, 0, 1, 0)


def test_the_judge_sees_an_effect_that_was_counted_twice() -> None:
    events = model(LOAD)
    account = some_account(events)
    message_id, count, total = account[-1]
    account[-1] = (message_id, count + 1, total)
    assert judge(LOAD, everything_committed(), output_of(events)) == Verdict(1, 1, 1, 0)


def test_the_judge_sees_an_event_that_no_message_leads_to() -> None:
    events = model(LOAD)
    events["nobody"] = [("m-x", 1, 1)]
    assert judge(LOAD, everything_committed(), output_of(events)) == Verdict(0, 1, 1, 0)


def test_the_judge_sees_an_event_that_overtook_a_lost_one() -> None:
    events = model(LOAD)
    some_account(events).pop(0)
    nothing_committed: dict[int, int] = {}
    verdict = judge(LOAD, nothing_committed, output_of(events))
    assert (verdict.missing, verdict.wrong) == (0, 1)
    assert not verdict.is_exact


def test_the_judge_lets_events_be_ahead_of_the_committed_offset() -> None:
    committed = everything_committed()
    partly = {partition: offset - 1 for partition, offset in committed.items()}
    verdict = judge(LOAD, partly, output_of(model(LOAD)))
    assert verdict == Verdict(0, 0, 0, ahead=len(committed))
    assert verdict.is_exact


def test_the_judge_sees_an_event_of_an_account_that_had_to_be_silent() -> None:
    events = model(LOAD)
    everybody = set(events)
    silent = sorted(everybody)[0]
    found = judge(LOAD, everything_committed(), output_of(events), lambda each: each == silent)
    assert (found.surplus, found.wrong) == (len(events[silent]), 1)
    del events[silent]
    found = judge(LOAD, everything_committed(), output_of(events), lambda each: each == silent)
    assert found.is_exact


def test_a_message_costs_no_more_work_than_its_budget() -> None:
    """Counted, not timed: the same on every machine. `scripts/bench guard --write` renews it."""
    allowed = guard.budget()
    if not sys.version.startswith(f"{allowed['python']}."):
        pytest.skip(f"instructions were counted on Python {allowed['python']}; others have others")
    assert guard.overdrawn(guard.found(), allowed) == []


def test_the_guard_tells_what_is_above_the_budget() -> None:
    allowed = {"per_message": {"applied": {"instructions": 1000.0, "calls": 90.0}}}
    dearer = {"per_message": {"applied": {"instructions": 1000.0, "calls": 92.0}}}
    assert guard.overdrawn(allowed, allowed) == []
    assert guard.overdrawn(dearer, allowed) == ["applied: 92 calls a message, 90 allowed"]


def test_the_page_says_what_the_results_say() -> None:
    assert page.outdated() == [], "run scripts/generate-performance-doc"


def test_the_page_takes_the_newest_result_that_is_large_enough(tmp_path: Path) -> None:
    kept = [
        ("latency-a", {"at": "2026-01-02", "size": "quick"}),
        ("latency-b", {"at": "2026-01-01", "size": "full"}),
        ("latency-c", {"at": "2026-01-03", "size": "tiny"}),
        ("engine-of-the-first-layout", {"at": "2026-01-03"}),
    ]
    for name, result in kept:
        whole = {"benchmark": name.partition("-")[0], **result}
        (tmp_path / f"{name}.json").write_text(json.dumps(whole))
    assert {name: file for name, (file, _) in page.newest(tmp_path).items()} == {
        "latency": "latency-a.json"
    }


def test_a_plot_is_the_same_each_time_and_well_formed() -> None:
    shown = [plot.Bar("a & b", 3, "3", "ours", 2, 4), plot.Bar("", 1, "1", "theirs")]
    drawn = plot.bars("Title", shown)
    assert drawn == plot.bars("Title", shown)
    ElementTree.fromstring(drawn)
    line = plot.Line("x", [(0, 1.0), (1_000_000, 0.5)])
    ElementTree.fromstring(plot.lines("Title", "keys", "messages/s", [line]))


@pytest.mark.parametrize("arguments", [[], ["nonsense"]])
def test_scripts_bench_wants_to_know_what_to_measure(arguments: list[str]) -> None:
    ran = subprocess.run([ROOT / "scripts/bench", *arguments], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "engine" in ran.stderr


def test_scripts_bench_explains_itself() -> None:
    ran = subprocess.run([ROOT / "scripts/bench", "--help"], capture_output=True, text=True)
    assert ran.returncode == 0
    assert all(name in ran.stdout for name in MODULES)
