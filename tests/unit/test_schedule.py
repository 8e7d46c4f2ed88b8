"""Which keys are due."""

from __future__ import annotations

from bookstore_streams.engine.schedule import Schedule


def test_keys_come_due_earliest_first_and_once() -> None:
    schedule: Schedule[str] = Schedule()
    for key, due_ms in {"c": 30, "a": 10, "b": 20, "d": 40}.items():
        schedule.set(key, due_ms)
    assert schedule.next_ms() == 10
    assert schedule.pop_due(30, 9) == ["a", "b", "c"]
    assert schedule.pop_due(30, 9) == []
    assert schedule.next_ms() == 40


def test_only_so_many_keys_come_at_once() -> None:
    schedule: Schedule[str] = Schedule()
    for n in range(5):
        schedule.set(f"key-{n}", n)
    assert schedule.pop_due(10, 2) == ["key-0", "key-1"]
    assert schedule.pop_due(10, 2) == ["key-2", "key-3"]
    assert schedule.pop_due(10, 2) == ["key-4"]


def test_a_key_is_known_until_it_is_dropped() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("due", 5)
    schedule.set("held", None)
    assert schedule.pop_due(9, 9) == ["due"]
    assert ("due" in schedule, "held" in schedule, "other" in schedule) == (True, True, False)
    schedule.drop("due")
    schedule.drop("held")
    assert len(schedule) == 0


def test_a_held_key_does_not_come_due() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("a", 5)
    schedule.set("a", None)
    assert schedule.next_ms() is None
    assert schedule.pop_due(9, 9) == []


def test_a_key_that_came_due_can_have_the_same_time_again() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("a", 5)
    assert schedule.pop_due(9, 9) == ["a"]
    schedule.set("a", 5)
    assert schedule.pop_due(9, 9) == ["a"]


def test_a_full_schedule_is_as_good_as_one_built_key_by_key() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.fill((f"key-{n}", None if n % 10 == 0 else n * 37 % 101) for n in range(100))
    assert len(schedule) == 100
    assert schedule.pop_due(200, 200) == sorted(
        (f"key-{n}" for n in range(100) if n % 10), key=lambda key: int(key[4:]) * 37 % 101
    )


def test_times_that_were_replaced_do_not_pile_up() -> None:
    schedule: Schedule[str] = Schedule()
    for due_ms in range(10_000):
        schedule.set("a", 20_000 - due_ms)
    assert len(schedule._heap) < 100
    assert schedule.next_ms() == 10_001


def test_keys_due_at_the_same_time_come_in_their_own_order() -> None:
    schedule: Schedule[str] = Schedule()
    for key in "zyx":
        schedule.set(key, 5)
    assert schedule.pop_due(5, 9) == ["x", "y", "z"]


def test_setting_a_key_again_replaces_its_time_sooner_or_later() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("a", 10)
    schedule.set("b", 10)
    schedule.set("a", 20)
    schedule.set("b", 5)
    assert schedule.pop_due(5, 9) == ["b"]
    assert schedule.pop_due(19, 9) == []
    assert schedule.next_ms() == 20
    assert schedule.pop_due(20, 9) == ["a"]


def test_a_key_set_back_to_an_earlier_time_it_had_comes_once() -> None:
    schedule: Schedule[str] = Schedule()
    for due_ms in (10, 20, 10):
        schedule.set("a", due_ms)
    assert schedule.pop_due(100, 9) == ["a"]
    assert schedule.next_ms() is None


def test_a_dropped_key_does_not_come_due_and_can_be_set_again() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.set("a", 10)
    schedule.drop("a")
    schedule.drop("never set")
    assert schedule.next_ms() is None
    assert len(schedule) == 0
    schedule.set("a", 10)
    assert schedule.pop_due(10, 9) == ["a"]


def test_an_empty_schedule_has_no_next() -> None:
    schedule: Schedule[str] = Schedule()
    assert schedule.next_ms() is None
    assert schedule.pop_due(10**15, 9) == []
