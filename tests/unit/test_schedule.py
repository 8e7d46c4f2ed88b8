"""Which keys are due."""

from __future__ import annotations

from bookstore_streams.engine.schedule import Schedule


def test_keys_come_due_earliest_first_and_once() -> None:
    schedule: Schedule[str] = Schedule()
    for key, due_ms in {"c": 30, "a": 10, "b": 20, "d": 40}.items():
        schedule.set(key, due_ms)
    assert schedule.next_ms() == 10
    assert schedule.pop_due(30) == ["a", "b", "c"]
    assert schedule.pop_due(30) == []
    assert schedule.next_ms() == 40
    assert len(schedule) == 1


def test_keys_due_at_the_same_time_keep_the_order_in_which_they_were_set() -> None:
    schedule: Schedule[str] = Schedule()
    for key in "zyx":
        schedule.set(key, 5)
    assert schedule.pop_due(5) == ["z", "y", "x"]


def test_setting_a_key_again_replaces_its_time_sooner_or_later() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("a", 10)
    schedule.set("b", 10)
    schedule.set("a", 20)
    schedule.set("b", 5)
    assert schedule.pop_due(5) == ["b"]
    assert schedule.pop_due(19) == []
    assert schedule.next_ms() == 20
    assert schedule.pop_due(20) == ["a"]


def test_a_key_set_back_to_an_earlier_time_it_had_comes_once() -> None:
    schedule: Schedule[str] = Schedule()
    for due_ms in (10, 20, 10):
        schedule.set("a", due_ms)
    assert schedule.pop_due(100) == ["a"]
    assert schedule.next_ms() is None


def test_a_dropped_key_does_not_come_due_and_can_be_set_again() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("a", 10)
    schedule.drop("a")
    schedule.drop("never set")
    assert schedule.next_ms() is None
    assert len(schedule) == 0
    schedule.set("a", 10)
    assert schedule.pop_due(10) == ["a"]


def test_an_empty_schedule_has_no_next() -> None:
    schedule: Schedule[str] = Schedule()
    assert schedule.next_ms() is None
    assert schedule.pop_due(10**15) == []


def test_keys_that_cannot_be_compared_may_be_due_together() -> None:
    schedule: Schedule[object] = Schedule()
    keys = [object(), object()]
    for key in keys:
        schedule.set(key, 1)
    assert schedule.pop_due(1) == keys
