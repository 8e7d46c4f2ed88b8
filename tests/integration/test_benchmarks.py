"""The benchmarks run, and their judge sees what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import MODULES
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


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_a_small_run_of_the_engine_benchmark_is_exact_for_every_contestant(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.engine", "--messages", "2000"]
    ran = subprocess.run(
        [*command, "--broker", kafka.url, "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == out.read_text()
    found = json.loads(ran.stdout)["contestants"]
    assert list(found) == list(CONTESTANTS)
    for name, contestant in CONTESTANTS.items():
        if not contestant.is_present:
            assert "absent" in found[name]
            continue
        (only_round,) = found[name]["rounds"]
        assert only_round["is_finished"], name
        assert only_round["is_exact"], (name, only_round)
        assert only_round["rss_mb_max"] > 1


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


@pytest.mark.parametrize("arguments", [[], ["nonsense"]])
def test_scripts_bench_wants_to_know_what_to_measure(arguments: list[str]) -> None:
    ran = subprocess.run([ROOT / "scripts/bench", *arguments], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "engine" in ran.stderr


def test_scripts_bench_explains_itself() -> None:
    ran = subprocess.run([ROOT / "scripts/bench", "--help"], capture_output=True, text=True)
    assert ran.returncode == 0
    assert all(name in ran.stdout for name in MODULES)
