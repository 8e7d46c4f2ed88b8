"""G3 and G4: per key in arrival order, one at a time; other keys side by side."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookstore_streams.errors import PermanentError, TransientError
from bookstore_streams.testing.memory import MemoryDisk, until

if TYPE_CHECKING:
    from tests.engine.conftest import World


async def test_messages_of_a_key_wait_for_a_slow_first_one_and_others_do_not(world: World) -> None:
    gate = world.gate("a1")
    for key, message_id in [("A", "a1"), ("A", "a2"), ("B", "b1"), ("A", "a3"), ("B", "b2")]:
        world.send(key, message_id)
    worker = await world.start()
    await world.until_applied("b1", "b2")
    assert world.called("A") == ["a1"]
    assert world.offset() is None  # nothing may be committed past the first
    gate.open()
    await world.until_applied("a1", "a2", "a3")
    assert world.called("A") == ["a1", "a2", "a3"]
    assert world.overlaps == []
    await worker.stop()
    assert world.offset() == 5


async def test_a_slow_first_message_survives_a_kill_that_comes_after_later_ones_are_done(
    world: World,
) -> None:
    """Several in flight, the first slow, later ones committed by their inbox rows, SIGKILL."""
    gate = world.gate("a1")
    for n, key in enumerate("ABCD"):
        world.send(key, f"{key.lower()}1", value={"n": n})
    worker = await world.start()
    await gate.reached.wait()
    await world.until_applied("b1", "c1", "d1")
    await worker.kill()
    assert world.offset() is None
    worker = await world.start()
    await world.until_applied("a1")
    await until(lambda: world.offset() == 4)
    assert world.effects() == {"a1": 1, "b1": 1, "c1": 1, "d1": 1}
    assert world.called() == ["a1", "b1", "c1", "d1", "a1"]
    await worker.stop()


async def test_a_later_message_of_a_key_is_not_handled_while_an_earlier_one_waits_for_its_retry(
    world: World,
) -> None:
    world.scripts["placed"] = [TransientError("provider down")]
    worker = await world.start()
    world.send("A", "placed")
    world.send("B", "other")
    world.send("A", "cancelled")
    await world.until_applied("cancelled")
    assert world.called() == ["placed", "other", "placed", "cancelled"]
    assert world.at("placed") == [0, 2_000]
    await worker.stop()


async def test_followers_that_arrive_while_the_head_is_tried_come_after_it_in_order(
    world: World,
) -> None:
    gate = world.gate("unused")
    world.scripts["a1"] = [TransientError("no"), gate]
    worker = await world.start()
    world.send("A", "a1")
    world.send("A", "a2")
    await gate.reached.wait()
    world.send("A", "a3")
    world.send("A", "a4")
    world.send("B", "b1")
    await world.until_applied("b1")
    assert world.called("A") == ["a1", "a1"]
    gate.open()
    await world.until_applied("a4")
    assert world.called("A") == ["a1", "a1", "a2", "a3", "a4"]
    assert world.overlaps == []
    await worker.stop()
    assert world.parked("A") is None
    assert world.rows("parked_messages") == {}


async def test_a_follower_that_fails_parks_the_rest_behind_it(world: World) -> None:
    world.scripts["a1"] = [TransientError("no")]
    world.scripts["a2"] = [TransientError("no"), TransientError("no")]
    worker = await world.start()
    for message_id in ("a1", "a2", "a3"):
        world.send("A", message_id)
    await until(lambda: world.called("A")[-1:] == ["a2"])
    world.send("A", "a4")
    await world.until_applied("a4")
    assert world.called("A") == ["a1", "a1", "a2", "a2", "a2", "a3", "a4"]
    assert world.at("a2") == [0, 2_000, 6_000]  # its own back-off, from the start
    assert world.attempts("a2") == [1, 2, 3]
    await worker.stop()


async def test_a_head_that_is_given_up_lets_its_followers_go_on(world: World) -> None:
    world.scripts["a1"] = [TransientError("no"), PermanentError("never")]
    worker = await world.start()
    for message_id in ("a1", "a2", "a3"):
        world.send("A", message_id)
    await world.until_applied("a2", "a3")
    assert world.called("A") == ["a1", "a1", "a2", "a3"]
    assert world.reasons() == {"a1": "permanent"}
    await worker.stop()


async def test_order_holds_over_kills_at_every_moment_of_a_retry(world: World) -> None:
    """Kill at 30 moments a tenth of the whole apart; the next worker has another disk each time."""
    for message_id in ("a1", "a2", "a3"):
        world.scripts[message_id] = [TransientError("no"), TransientError("no")]
    world.broker.produce("orders", b"A", b"{}", [("message-id", b"a1")])
    world.broker.produce("orders", b"B", b"{}", [("message-id", b"b1")])
    world.broker.produce("orders", b"A", b"{}", [("message-id", b"a2")])
    world.broker.produce("orders", b"A", b"{}", [("message-id", b"a3")])
    for n in range(30):
        worker = await world.start(disk=world.disk if n % 2 else MemoryDisk())
        await asyncio.sleep(0.617)
        await worker.kill()
    worker = await world.start()
    await world.until_applied("a1", "a2", "a3", "b1")
    firsts = list(dict.fromkeys(world.called("A")))
    lasts = list(dict.fromkeys(reversed(world.called("A"))))[::-1]
    assert firsts == lasts == ["a1", "a2", "a3"]
    assert world.effects() == {"a1": 1, "a2": 1, "a3": 1, "b1": 1}
    await worker.stop()


async def test_keys_run_side_by_side_and_no_more_than_the_concurrency_allows(world: World) -> None:
    gates = [world.gate(f"m{n}") for n in range(10)]
    for n in range(10):
        world.send(f"key-{n}", f"m{n}")
    worker = await world.start(concurrency=3)
    await until(lambda: len(world.running) == 3)
    for gate in gates:
        gate.open()
    await world.until_applied(*(f"m{n}" for n in range(10)))
    assert world.running_max == 3
    assert world.overlaps == []
    await worker.stop()


async def test_one_busy_key_does_not_keep_other_keys_from_their_turn(world: World) -> None:
    """A key whose handler waits takes its later messages into its lane, out of others' way."""
    gates = [world.gate(f"a{n}") for n in range(50)]
    for n in range(50):
        world.send("A", f"a{n}")
    world.send("B", "b1")
    worker = await world.start(concurrency=2)
    await world.until_applied("b1")
    assert world.called() == ["a0", "b1"]
    for gate in gates:
        gate.open()
    await world.until_applied("a49")
    assert world.called("A") == [f"a{n}" for n in range(50)]
    await worker.stop()


async def test_parked_keys_that_come_due_and_new_records_take_turns(world: World) -> None:
    """Neither a wave of due keys nor a long backlog keeps the other waiting."""
    for n in range(20):
        world.scripts[f"p{n}"] = [TransientError("down")]
        world.send(f"P{n}", f"p{n}")
    worker = await world.start(concurrency=1)
    await until(lambda: len(world.calls) == 20)
    await until(lambda: world.clock.now_ms() >= world.calls[-1].at_ms + 1_990, poll_s=0.001)
    gate = world.gate("first")
    world.send("F", "first")
    await until(lambda: world.called()[-1] == "first")
    for n in range(20):
        world.send(f"Q{n}", f"q{n}")
    await until(lambda: world.clock.now_ms() >= world.calls[0].at_ms + 2_010, poll_s=0.001)
    gate.open()
    await world.until_applied(*(f"p{n}" for n in range(20)), *(f"q{n}" for n in range(20)))
    both = [message_id[0] for message_id in world.called()[21:]]
    assert both == ["p", "q"] * 20 or both == ["q", "p"] * 20
    await worker.stop()
