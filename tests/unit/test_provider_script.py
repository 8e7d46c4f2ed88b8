"""What call n of an order gets from the scriptable provider: pure, without HTTP and clock."""

from __future__ import annotations

import pytest

from bookstore_streams.testing.provider.script import (
    OK,
    Scripts,
    Step,
    parse_down,
    parse_order,
    parse_random,
    parse_step,
    parse_steps,
)


def taken(scripts: Scripts, order_id: str, calls: int, operation="charge") -> list[str]:
    steps = [scripts.take(order_id, operation) for _ in range(calls)]
    return [str(step.status) if step.answer == "status" else step.answer for step in steps]


def test_steps_are_used_up_one_per_call_and_then_all_is_well():
    scripts = Scripts()
    scripts.set_order(*parse_order({"order_id": "A", "steps": [{"status": 503}, {"reset": True}]}))
    assert taken(scripts, "A", 4) == ["503", "reset", "ok", "ok"]
    assert taken(scripts, "B", 1) == ["ok"]


def test_forever_repeats_the_last_step():
    scripts = Scripts()
    steps = [{"status": 503}, {"status": 500}]
    scripts.set_order(*parse_order({"order_id": "A", "steps": steps, "forever": True}))
    assert taken(scripts, "A", 4) == ["503", "500", "500", "500"]


def test_a_new_script_starts_at_its_first_step():
    scripts = Scripts()
    order = parse_order({"order_id": "A", "steps": [{"status": 503}]})
    scripts.set_order(*order)
    assert taken(scripts, "A", 2) == ["503", "ok"]
    scripts.set_order(*order)
    assert taken(scripts, "A", 2) == ["503", "ok"]


def test_any_is_shared_by_both_operations_and_a_named_one_comes_first():
    scripts = Scripts()
    scripts.set_order(*parse_order({"order_id": "A", "steps": [{"status": 500}, {"status": 501}]}))
    assert taken(scripts, "A", 1, "charge") == ["500"]
    assert taken(scripts, "A", 1, "refund") == ["501"]
    scripts.set_order(
        *parse_order({"order_id": "B", "operation": "refund", "steps": [{"status": 502}]})
    )
    scripts.set_order(*parse_order({"order_id": "B", "steps": [{"status": 503}]}))
    assert taken(scripts, "B", 2, "refund") == ["502", "ok"]
    assert taken(scripts, "B", 2, "charge") == ["503", "ok"]


def test_the_default_holds_for_each_order_without_a_script_on_its_own():
    scripts = Scripts()
    scripts.set_default(parse_steps({"steps": [{"status": 503}]}), delay_ms=0)
    scripts.set_order(*parse_order({"order_id": "S", "steps": []}))
    assert taken(scripts, "A", 2) == ["503", "ok"]
    assert taken(scripts, "B", 2) == ["503", "ok"]
    assert taken(scripts, "S", 1) == ["ok"]


def test_the_default_latency_holds_for_every_step_without_a_longer_one():
    scripts = Scripts()
    scripts.set_default(parse_steps({}), delay_ms=20)
    steps = [{"status": 503}, {"delay_ms": 300}]
    scripts.set_order(*parse_order({"order_id": "A", "steps": steps}))
    assert [scripts.take("A", "charge").delay_ms for _ in range(3)] == [20, 300, 20]
    assert scripts.take("B", "charge").delay_ms == 20


def test_a_down_time_begins_and_ends_when_it_says():
    scripts = Scripts()
    scripts.down_times = [
        parse_down({"from_ms": 100, "for_ms": 50}, now_ms=1_000),
        parse_down({"from_ms": 500, "status": 429, "retry_after": 2}, now_ms=1_000),
    ]
    found = {now: scripts.down(now) for now in (1_099, 1_100, 1_149, 1_150, 1_499, 1_500, 10**15)}
    assert {now: step and step.status for now, step in found.items()} == {
        1_099: None,
        1_100: 503,
        1_149: 503,
        1_150: None,
        1_499: None,
        1_500: 429,
        10**15: 429,
    }


def test_random_failures_are_the_same_for_each_seed_order_and_operation():
    source = {"seed": 7, "fail_share": 0.2, "modes": ["503", "reset"], "attempts_max": 3}
    ids = [f"order-{number}" for number in range(5_000)]

    def outcomes(order_ids, **changed):
        scripts = Scripts()
        scripts.set_random(parse_random({**source, **changed}))
        return {order_id: taken(scripts, order_id, 4) for order_id in order_ids}

    first = outcomes(ids)
    assert outcomes(reversed(ids)) == first
    assert outcomes(ids, seed=8) != first
    failing = [steps for steps in first.values() if steps[0] != "ok"]
    assert 0.18 < len(failing) / len(ids) < 0.22
    for steps in first.values():
        failures = 4 - steps.count("ok")
        assert failures <= 3
        assert steps[failures:] == ["ok"] * (4 - failures)
    assert {4 - steps.count("ok") for steps in failing} == {1, 2, 3}
    assert {step for steps in failing for step in steps} == {"ok", "503", "reset"}


def test_random_failures_do_not_depend_on_the_machine():
    failures = parse_random({"seed": 7, "fail_share": 0.5})
    counts = [failures.failures(f"order-{number}", "charge") for number in range(12)]
    # Written down once: where this changes, a seed that once failed fails no more.
    assert counts == [0, 0, 2, 0, 2, 1, 0, 0, 1, 2, 2, 0]


def test_no_share_fails_nothing_and_the_whole_share_fails_everything():
    never = parse_random({"seed": 1, "fail_share": 0})
    always = parse_random({"seed": 1, "fail_share": 1})
    for number in range(1_000):
        assert never.failures(str(number), "charge") == 0
        assert always.failures(str(number), "charge") >= 1


@pytest.mark.parametrize(
    ("source", "step"),
    [
        ({}, OK),
        ({"ok": True}, OK),
        ({"delay_ms": 300}, Step(delay_ms=300)),
        ({"timeout": True}, Step("timeout", books=False)),
        ({"charge_then_reset": True}, Step("reset", books=True)),
        ({"charge_then_timeout": True}, Step("timeout", books=True)),
        (
            {"status": 503, "retry_after": 2, "delay_ms": 5},
            Step("status", books=False, status=503, retry_after="2", delay_ms=5),
        ),
        (
            {"status": 402, "body": {"error": "card declined"}},
            Step("status", books=False, status=402, body=b'{"error":"card declined"}'),
        ),
        ({"status": 402, "body": ""}, Step("status", books=False, status=402, body=b"")),
    ],
)
def test_a_step_is_read(source, step):
    assert parse_step(source) == step


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ([], "must be an object"),
        ({"satus": 503}, "no `satus`"),
        ({"status": "503"}, "from 300 to 599"),
        ({"status": True}, "from 300 to 599"),
        ({"status": 200}, "from 300 to 599"),
        ({"status": 503, "reset": True}, "one thing"),
        ({"reset": 1}, "must be true"),
        ({"reset": False}, "must be true"),
        ({"delay_ms": -1}, "whole number"),
        ({"delay_ms": "1"}, "whole number"),
        ({"retry_after": 2}, "belong to a `status`"),
        ({"status": 503, "retry_after": []}, "seconds or a text"),
    ],
)
def test_a_wrong_step_is_refused_with_the_reason(source, why):
    with pytest.raises(ValueError, match=why):
        parse_step(source)


@pytest.mark.parametrize(
    ("parse", "source", "why"),
    [
        (parse_order, {}, "order_id"),
        (parse_order, {"order_id": ""}, "order_id"),
        (parse_order, {"order_id": "A", "operation": "void"}, "charge, refund or any"),
        (parse_order, {"order_id": "A", "steps": {}}, "must be a list"),
        (parse_order, {"order_id": "A", "forever": True}, "there is none"),
        (parse_order, {"order_id": "A", "forever": 1}, "true or false"),
        (parse_order, {"order_id": "A", "step": []}, "no `step`"),
        (parse_random, {}, "seed"),
        (parse_random, {"seed": 1, "fail_share": 2}, "between 0 and 1"),
        (parse_random, {"seed": 1, "fail_share": float("nan")}, "between 0 and 1"),
        (parse_random, {"seed": 1, "modes": []}, "at least one"),
        (parse_random, {"seed": 1, "modes": ["explode"]}, "no `explode`"),
        (parse_random, {"seed": 1, "attempts_max": 0}, "at least 1"),
        (lambda source: parse_down(source, 0), {"status": "refuse"}, "needs `for_ms`"),
        (lambda source: parse_down(source, 0), {"for_ms": -1}, "whole number"),
        (
            lambda source: parse_down(source, 0),
            {"for_ms": 1, "status": "refuse", "delay_ms": 1},
            "no `delay_ms`",
        ),
    ],
)
def test_a_wrong_script_is_refused_with_the_reason(parse, source, why):
    with pytest.raises(ValueError, match=why):
        parse(source)
