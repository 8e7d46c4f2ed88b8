"""Lasting failures: where they go, what the hook adds, and how one comes back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bookstore_streams.core.envelope import emitted_id
from bookstore_streams.errors import LeaseLostError, PermanentError, TransientError
from bookstore_streams.testing.memory import MemoryDisk, until

if TYPE_CHECKING:
    from tests.engine.conftest import World

NEVER = PermanentError("card expired")


async def test_a_permanent_failure_is_dead_lettered_at_once_with_everything_about_it(
    world: World,
) -> None:
    world.scripts["a1"] = [NEVER]
    worker = await world.start()
    world.send("filler", "f0")
    sent = world.send("A", "a1", headers=[("content-type", b"json"), ("retry-not-before", b"1")])
    world.send("A", "a2")
    await world.until_applied("a2")
    (letter,) = world.dead()
    assert (letter.key, letter.value) == (sent.key, sent.value)
    assert dict(letter.headers) == {
        "message-id": b"a1",
        "content-type": b"json",
        "retry-attempt": b"1",
        "original-topic-partition-offset": b"orders [[0]] @1",
        "dlt-exception-type": b"PermanentError",
        "dlt-exception-message": b"card expired",
        "dlt-reason": b"permanent",
    }
    assert len(letter.headers) == len(dict(letter.headers))
    assert world.outcome("a1") == "dead-lettered"
    assert world.called() == ["f0", "a1", "a2"]
    assert worker.engine.counters["billing:dead_letters:permanent"] == 1
    await worker.stop()
    assert world.offset() == 3


async def test_nothing_that_the_failed_handler_staged_goes_with_the_dead_letter(
    world: World,
) -> None:
    async def write_and_fail(event: Any, context: Any) -> None:
        context.put("effects", b"left-over", b"1")
        context.emit("events", {"left": "over"})
        raise NEVER

    world.scripts["a1"] = [write_and_fail]
    worker = await world.start()
    world.send("A", "a1")
    await until(world.dead)
    assert world.rows("effects") == {}
    assert world.events() == []
    await worker.stop()


async def test_what_the_hook_does_is_in_the_commit_of_the_dead_letter(world: World) -> None:
    world.scripts["a1"] = [NEVER]
    worker = world.worker(world.consumer(on_dead_letter=world.hook))
    hold = worker.backend.faults.hold("commit")
    worker.start()
    world.send("A", "a1")
    await hold.reached.wait()
    assert (world.dead(), world.events(), world.rows("hooks"), world.rows("inbox")) == (
        [], [], {}, {},
    )  # fmt: skip
    hold.let_go()
    await until(world.dead)
    assert world.events() == [{"given_up": "a1"}]
    assert world.rows("hooks") == {b"a1": b"permanent"}
    assert world.outcome("a1") == "dead-lettered"
    # An id of its own: a replay that succeeds must not meet the id that told the failure.
    (event,) = world.broker.records("events")
    assert event.header("message-id") == emitted_id("billing", "a1", -1)
    assert [(letter.reason, letter.attempts) for letter in world.letters] == [("permanent", 1)]
    await worker.stop()


async def test_the_hook_runs_for_a_parked_head_that_is_given_up(world: World) -> None:
    world.scripts["a1"] = [TransientError("no"), NEVER]
    worker = await world.start(world.consumer(on_dead_letter=world.hook))
    world.send("A", "a1")
    world.send("A", "a2")
    await world.until_applied("a2")
    assert world.rows("hooks") == {b"a1": b"permanent"}
    assert world.letters[0].attempts == 2
    assert world.parked("A") is None
    assert world.rows("parked_messages") == {}
    await worker.stop()


async def test_a_hook_that_raises_keeps_the_message_parked_with_its_verdict_and_runs_again(
    world: World,
) -> None:
    world.scripts["a1"] = [NEVER]
    world.hook_scripts["a1"] = [ValueError("hook broke"), TransientError("hook waits")]
    worker = await world.start(world.consumer(on_dead_letter=world.hook))
    world.send("A", "a1")
    world.send("A", "a2")
    await until(lambda: world.offset() == 2)
    parked = world.parked("A")
    assert parked is not None
    assert parked.doom is not None
    assert (parked.doom.reason, parked.doom.error_message) == ("permanent", "card expired")
    assert parked.cause == "dead-letter hook failed: ValueError: hook broke"
    assert world.outcome("a1") == "parked"
    assert world.dead() == []
    assert worker.engine.counters["billing:dead_letter_hook_failures"] == 1
    await worker.kill()
    worker = await world.start(
        world.consumer(on_dead_letter=world.hook), disk=MemoryDisk()
    )  # the verdict survives the worker
    await world.until_applied("a2")
    assert world.called() == ["a1", "a2"]  # the handler is not asked again
    assert world.reasons() == {"a1": "permanent"}
    assert world.dead()[0].header("retry-attempt") == "1"
    assert len(world.letters) == 3
    assert len(world.dead()) == 1
    assert world.events() == [{"given_up": "a1"}, {"done": "a2", "by": "billing"}]
    assert world.rows("hooks") == {b"a1": b"permanent"}
    await worker.stop()


async def test_the_attempts_of_a_parked_head_are_told_although_the_hook_failed_first(
    world: World,
) -> None:
    world.scripts["a1"] = [TransientError("no"), NEVER]
    world.hook_scripts["a1"] = [ValueError("hook broke")]
    worker = await world.start(world.consumer(on_dead_letter=world.hook))
    world.send("A", "a1")
    await until(world.dead)
    assert world.attempts("a1") == [1, 2]
    assert [letter.attempts for letter in world.letters] == [2, 2]
    assert world.dead()[0].header("retry-attempt") == "2"
    await worker.stop()


async def test_a_message_whose_handler_wrote_too_much_and_whose_hook_failed_is_one_dead_letter(
    world: World,
) -> None:
    async def too_much(event: Any, context: Any) -> None:
        context.put("effects", b"row", bytes(2_000_000))

    world.scripts["a1"] = [too_much]
    world.hook_scripts["a1"] = [ValueError("hook broke"), ValueError("and again")]
    worker = await world.start(world.consumer(on_dead_letter=world.hook))
    world.send("A", "a1")
    world.send("A", "a2")
    await world.until_applied("a2")
    assert [letter.header("message-id") for letter in world.dead()] == ["a1"]
    assert world.dead()[0].header("dlt-exception-type") == "RecordTooLargeError"
    assert world.rows("hooks") == {b"a1": b"permanent"}
    await worker.stop()


async def test_what_a_failed_hook_staged_is_dropped(world: World) -> None:
    async def write_and_fail(event: Any, context: Any) -> None:
        context.put("hooks", b"left-over", b"1")
        raise ValueError

    world.scripts["a1"] = [NEVER]
    world.hook_scripts["a1"] = [write_and_fail]
    worker = await world.start(world.consumer(on_dead_letter=world.hook))
    world.send("A", "a1")
    await until(world.dead)
    assert world.rows("hooks") == {b"a1": b"permanent"}
    await worker.stop()


async def test_a_hook_that_hangs_is_cancelled_and_runs_again(world: World) -> None:
    async def hang(event: Any, context: Any) -> None:
        await asyncio.Event().wait()

    world.scripts["a1"] = [NEVER]
    world.hook_scripts["a1"] = [hang]
    consumer = world.consumer(on_dead_letter=world.hook, handler_timeout_ms=1_000)
    worker = await world.start(consumer)
    world.send("A", "a1")
    await until(world.dead)
    assert len(world.letters) == 2
    assert world.rows("hooks") == {b"a1": b"permanent"}
    await worker.stop()


async def test_a_hook_without_a_lease_waits_with_its_message_parked(world: World) -> None:
    world.scripts["a1"] = [NEVER]
    world.hook_scripts["a1"] = [LeaseLostError("gone")]
    worker = await world.start(world.consumer(on_dead_letter=world.hook))
    world.send("A", "a1")
    await until(world.dead)
    assert world.called() == ["a1"]
    assert len(world.dead()) == 1
    await worker.stop()


async def test_while_the_hook_runs_later_messages_of_the_key_wait(world: World) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def wait(event: Any, context: Any) -> None:
        reached.set()
        await go_on.wait()

    world.scripts["a1"] = [NEVER]
    world.hook_scripts["a1"] = [wait]
    worker = await world.start(world.consumer(on_dead_letter=world.hook))
    world.send("A", "a1")
    world.send("A", "a2")
    world.send("B", "b1")
    await reached.wait()
    await world.until_applied("b1")
    assert world.called() == ["a1", "b1"]
    assert world.offset() is None
    go_on.set()
    await world.until_applied("a2")
    await until(lambda: world.offset() == 3)
    await worker.stop()


# -- coming back ----------------------------------------------------------------------------


async def test_a_replayed_dead_letter_opens_the_inbox_again_and_a_plain_copy_is_a_duplicate(
    world: World,
) -> None:
    world.scripts["a1"] = [NEVER]
    worker = await world.start()
    world.send("A", "a1")
    await until(world.dead)
    (letter,) = world.dead()
    copy = [h for h in letter.headers if not h[0].startswith("dlt-")]
    world.broker.produce("orders", letter.key, letter.value, copy)
    await until(lambda: world.offset() == 2)
    assert world.called() == ["a1"]
    assert worker.engine.counters["billing:duplicates"] == 1
    world.broker.produce("orders", letter.key, letter.value, [*copy, ("replay-id", b"r1")])
    await world.until_applied("a1")
    assert world.outcome("a1") == "applied"
    # What has taken effect stays so, whoever replays it.
    world.broker.produce("orders", letter.key, letter.value, [*copy, ("replay-id", b"r2")])
    await until(lambda: world.offset() == 4)
    assert world.effects() == {"a1": 1}
    assert world.called() == ["a1", "a1"]
    await worker.stop()


async def test_a_replay_that_fails_for_good_again_is_a_dead_letter_again_told_by_the_same_id(
    world: World,
) -> None:
    world.scripts["a1"] = [NEVER, NEVER]
    worker = await world.start(world.consumer(on_dead_letter=world.hook))
    world.send("A", "a1")
    await until(world.dead)
    world.send("A", "a1", headers=[("replay-id", b"r1")])
    await until(lambda: len(world.dead()) == 2)
    assert len({event.header("message-id") for event in world.broker.records("events")}) == 1
    assert [letter.header("replay-id") for letter in world.dead()] == [None, "r1"]
    await worker.stop()


async def test_a_replay_is_parked_behind_what_waits_of_its_key(world: World) -> None:
    world.scripts["a1"] = [NEVER]
    world.scripts["a2"] = [TransientError("no")]
    worker = await world.start()
    world.send("A", "a1")
    world.send("A", "a2")
    await until(lambda: world.parked("A"))
    world.send("A", "a1", headers=[("replay-id", b"r1")])
    await world.until_applied("a1", "a2")
    assert world.called() == ["a1", "a2", "a2", "a1"]
    await worker.stop()


async def test_a_parked_message_that_a_new_version_does_not_know_can_be_replayed(
    world: World,
) -> None:
    """Park a type, restart without it: its dead letter stands in the inbox under its own id."""
    both = world.consumer(known_types=frozenset({"Old", "New"}))
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start(both)
    world.send("A", "a1", value={"type": "Old"})
    await until(lambda: world.parked("A"))
    await worker.stop()
    worker = await world.start(world.consumer(known_types=frozenset({"New"})))
    await until(world.dead)
    assert world.reasons() == {"a1": "permanent"}
    assert world.outcome("a1") == "dead-lettered"
    await worker.stop()
    worker = await world.start(both)
    world.send("A", "a1", value={"type": "Old"}, headers=[("replay-id", b"r1")])
    await world.until_applied("a1")
    await worker.stop()


async def test_a_parked_record_without_an_id_that_nobody_knows_any_more_takes_no_other_ids_place(
    world: World,
) -> None:
    """Its key must not stand in for its id: another message may have that very id."""
    world.scripts["a1"] = [TransientError("no")]
    worker = await world.start(world.consumer(known_types=frozenset({"Old", "New"})))
    world.send("A", "a1", value={"type": "New"})
    world.send("A", None, value={"type": "Old"})
    await until(lambda: world.offset() == 2)
    await worker.stop()
    worker = await world.start(world.consumer(known_types=frozenset({"New"})))
    await world.until_applied("a1")
    await until(world.dead)
    world.send("B", "A", value={"type": "New"})
    await until(lambda: world.offset() == 3)
    assert world.effects() == {"a1": 1, "A": 1}
    await worker.stop()


async def test_a_replay_that_is_read_again_after_a_crash_does_not_open_the_inbox_twice(
    world: World,
) -> None:
    """A slow record before it holds the offset back, so the replay is delivered once more."""
    world.scripts["a1"] = [NEVER] * 9
    gate = world.gate("slow")
    consumer = world.consumer(on_dead_letter=world.hook)
    worker = await world.start(consumer)
    world.send("S", "slow")
    world.send("A", "a1")
    await gate.reached.wait()
    await until(world.dead)
    world.send("A", "a1", headers=[("replay-id", b"r1")])
    await until(lambda: len(world.dead()) == 2)
    await worker.kill()
    worker = await world.start(consumer)
    await world.until_applied("slow")
    await until(lambda: world.offset() == 3)
    assert world.called().count("a1") == 2
    assert len(world.dead()) == 2
    await worker.stop()
