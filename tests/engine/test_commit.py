"""G1 and G2 through failing commits: at every step, with or without the worker and its disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from bookstore_streams.errors import (
    ConnectionLostError,
    InvariantError,
    LeaseLostError,
    PermanentError,
    StoreError,
    TransientError,
)
from bookstore_streams.testing.memory import MemoryDisk, MemoryRecord, until

if TYPE_CHECKING:
    from tests.engine.conftest import World

GONE = ConnectionLostError("broker gone")
STEPS = ["begin", "send", "commit", "committed", "apply"]
PROBES = ["before-transaction", "after-sends", "after-commit", "after-store"]


def send_mixed(world: World) -> None:
    """Successes, a retry with a follower, a permanent failure, a duplicate: 7 records."""
    world.scripts["a1"] = [TransientError("no")]
    world.scripts["c1"] = [PermanentError("never")] * 20
    for key, message_id in [
        ("A", "a1"), ("B", "b1"), ("A", "a2"), ("C", "c1"), ("B", "b2"), ("B", "b1"), ("C", "c2"),
    ]:  # fmt: skip
        world.send(key, message_id)


def check_mixed(world: World) -> None:
    assert world.effects() == dict.fromkeys(["a1", "a2", "b1", "b2", "c2"], 1)
    assert sorted(event["done"] for event in world.events()) == ["a1", "a2", "b1", "b2", "c2"]
    assert [letter.header("message-id") for letter in world.dead()] == ["c1"]
    assert world.offset() == 7
    assert world.rows("parked_keys") == world.rows("parked_messages") == {}
    for key, messages in {"A": ["a1", "a2"], "B": ["b1", "b2"], "C": ["c1", "c2"]}.items():
        # In order at the first and at the last call, whatever was repeated in between.
        assert list(dict.fromkeys(world.called(key))) == messages
        assert list(dict.fromkeys(reversed(world.called(key)))) == messages[::-1]
    assert world.overlaps == []


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("times", [1, 3])
async def test_a_commit_that_fails_at_any_step_loses_nothing_and_doubles_nothing(
    world: World, step: str, times: int
) -> None:
    worker = world.worker()
    worker.start()
    await until(worker.engine.is_ready)  # recovery writes, too
    worker.backend.faults.fail(step, StoreError("disk full") if step == "apply" else GONE, times)
    send_mixed(world)
    await world.until_applied("a1", "a2", "b1", "b2", "c2")
    await until(lambda: world.offset() == 7)
    await worker.stop()
    check_mixed(world)


@pytest.mark.parametrize("wipe", [False, True], ids=["same disk", "lost disk"])
@pytest.mark.parametrize("commit", [1, 2, 3, 4])
@pytest.mark.parametrize("step", PROBES)
async def test_a_worker_killed_at_any_step_of_any_commit_loses_nothing_and_doubles_nothing(
    world: World, step: str, commit: int, wipe: bool
) -> None:
    """Kill it in the n-th commit of a run, at one step; another goes on, same disk or none."""
    worker = world.worker(commit_messages_max=1)
    passed = 0

    def kill_there(at: str) -> None:
        nonlocal passed
        passed += at == step
        if at == step and passed == commit:
            worker.backend.die()
            raise ConnectionLostError("killed")

    worker.engine.probe = kill_there
    worker.start()
    send_mixed(world)
    await until(lambda: passed >= commit or world.offset() == 7)
    await worker.kill()
    successor = await world.start(disk=MemoryDisk() if wipe else world.disk)
    await world.until_applied("a1", "a2", "b1", "b2", "c2")
    await until(lambda: world.offset() == 7)
    await successor.stop()
    check_mixed(world)


async def test_a_commit_whose_answer_is_lost_is_not_done_again(world: World) -> None:
    worker = world.worker()
    worker.backend.faults.fail("committed", GONE)
    worker.start()
    world.send("A", "a1")
    await world.until_applied("a1")
    await until(lambda: worker.engine.status()[0].cause == "" and worker.engine.is_ready())
    world.send("A", "a2")
    await world.until_applied("a2")
    assert world.called() == ["a1", "a2"]
    await worker.stop()


async def test_while_a_commit_hangs_messages_are_handled_and_nothing_of_them_is_visible(
    world: World,
) -> None:
    worker = world.worker()
    hold = worker.backend.faults.hold("commit")
    worker.start()
    world.send("A", "a1")
    await hold.reached.wait()
    world.send("B", "b1")
    await until(lambda: len(world.ended) == 2)
    assert world.effects() == {}
    assert worker.engine.get("effects", b"billing/a1") is None
    hold.let_go()
    await world.until_applied("a1", "b1")
    assert worker.engine.get("effects", b"billing/a1") == b"1"
    await worker.stop()


async def test_an_aborted_commit_of_several_messages_is_done_again_as_a_whole(
    world: World,
) -> None:
    worker = world.worker()
    worker.backend.faults.fail("commit", GONE)
    worker.start()
    for n in range(5):
        world.send(f"key-{n}", f"m{n}")
    await world.until_applied(*(f"m{n}" for n in range(5)))
    assert sorted(world.called()) == sorted([f"m{n}" for n in range(5)] * 2)
    assert len(world.events()) == 5
    await worker.stop()


async def test_a_store_that_cannot_be_written_after_the_commit_is_recovered_from_the_changelog(
    world: World,
) -> None:
    worker = await world.start()
    worker.backend.faults.fail("apply", StoreError("disk full"))
    world.send("A", "a1")
    await world.until_applied("a1")
    world.send("A", "a1")  # only the changelog knows this id by now
    world.send("A", "a2")
    await world.until_applied("a2")
    assert world.called() == ["a1", "a2"]
    assert world.effects() == {"a1": 1, "a2": 1}
    assert worker.engine.get("effects", b"billing/a1") == b"1"
    await worker.stop()


async def test_a_store_ahead_of_its_changelog_is_emptied(world: World) -> None:
    worker = await world.start()
    world.send("A", "a1")
    await world.until_applied("a1")
    await worker.stop()
    other = type(world)()  # another cluster with the old worker's disk
    worker = await other.start(disk=world.disk)
    other.send("A", "a1")
    await other.until_applied("a1")
    assert other.called() == ["a1"]
    await worker.stop()


async def test_the_committed_offset_never_passes_a_record_that_is_not_finished(
    world: World,
) -> None:
    gates = {n: world.gate(f"m{n}") for n in (1, 4)}
    worker = await world.start()
    for n in range(7):
        world.send(f"key-{n}", f"m{n}")
    await world.until_applied("m0", "m2", "m3", "m5", "m6")
    await until(lambda: world.offset() == 1)
    gates[4].open()
    await world.until_applied("m4")
    assert world.offset() == 1
    gates[1].open()
    await world.until_applied("m1")
    await until(lambda: world.offset() == 7)
    await worker.stop()


async def test_a_failed_commit_never_moves_the_offset_past_what_it_lost(world: World) -> None:
    """A later success must not commit past an earlier failure."""
    worker = world.worker()
    hold = worker.backend.faults.hold("commit")
    worker.backend.faults.fail("commit", GONE)
    worker.start()
    world.send("A", "a1")
    await hold.reached.wait()
    gate = world.gate("b1")
    world.send("B", "b1")
    world.send("C", "c1")
    await until(lambda: len(world.ended) == 2)  # c1 is done while the commit of a1 fails
    hold.let_go()
    await until(lambda: not worker.engine.is_ready())
    assert world.offset() is None
    assert world.effects() == {}
    gate.open()
    await world.until_applied("a1", "b1", "c1")
    await until(lambda: world.offset() == 3)
    await worker.stop()


async def test_offsets_with_gaps_are_committed_and_gone_on_from(world: World) -> None:
    """Ends of transactions take offsets of their own."""
    broker = world.broker
    epoch = broker.fence("producer")
    for message_id, ends in (("a1", "commit"), ("a2", "abort"), ("a3", "commit")):
        broker.begin("producer", epoch)
        headers = [("message-id", message_id.encode())]
        broker.send("producer", epoch, "orders", 0, b"A", b"{}", headers)
        if ends == "commit":
            broker.commit("producer", epoch)
        else:
            epoch = broker.fence("producer")
    worker = await world.start()
    await world.until_applied("a1", "a3")
    await until(lambda: world.offset() == 5)
    await worker.stop()
    worker = await world.start()
    world.send("A", "a4")
    await world.until_applied("a4")
    assert world.called() == ["a1", "a3", "a4"]
    await worker.stop()


async def test_records_read_again_below_the_next_expected_offset_are_passed_over(
    world: World,
) -> None:
    """Faust seeks back to committed offsets after a rebalance."""
    worker = await world.start()
    gate = world.gate("a1")
    world.send("A", "a1")
    world.send("B", "b1")
    await gate.reached.wait()
    await world.until_applied("b1")
    partition = worker.engine.open_partition(0)
    assert partition is not None
    partition.deliver("orders", world.broker.read("orders", 0, 0))
    world.send("C", "c1")
    await world.until_applied("c1")
    assert world.called() == ["a1", "b1", "c1"]
    gate.open()
    await until(lambda: world.offset() == 3)
    assert worker.engine.counters["billing:duplicates"] == 0
    await worker.stop()


async def test_messages_that_finish_together_share_a_transaction(world: World) -> None:
    worker = await world.start()
    for n in range(100):
        world.send(f"key-{n}", f"m{n}")
    await world.until_applied(*(f"m{n}" for n in range(100)))
    assert worker.engine.counters["commits"] <= 3
    await worker.stop()


async def test_a_full_batch_is_committed_without_waiting_for_rest_or_interval(
    world: World,
) -> None:
    worker = await world.start(commit_interval_ms=20_000, commit_messages_max=10)
    await world.let_commits_rest(worker, "first")
    began_ms = world.clock.now_ms()
    for n in range(10):
        world.send(f"key-{n}", f"m{n}")
    await world.until_applied(*(f"m{n}" for n in range(10)))
    assert world.clock.now_ms() - began_ms < 1_000
    await worker.stop()


async def test_what_is_finished_in_the_rest_after_a_commit_waits_for_its_end(world: World) -> None:
    """A commit that took long is followed by as long a rest, but never more than the interval."""
    worker = await world.start(commit_interval_ms=20_000)
    await world.let_commits_rest(worker, "first")
    world.send("A", "last")
    await until(lambda: world.called()[-1] == "last")
    await asyncio.sleep(19)
    assert "last" not in world.effects()
    await asyncio.sleep(2)
    assert "last" in world.effects()
    await worker.stop()


async def test_a_message_with_nothing_behind_it_is_committed_at_once(world: World) -> None:
    worker = await world.start(commit_interval_ms=20_000)
    for n in range(5):
        world.send("A", f"a{n}")
        began_ms = world.clock.now_ms()
        await world.until_applied(f"a{n}")
        assert world.clock.now_ms() - began_ms < 1_000
    await worker.stop()


async def test_while_handlers_wait_in_every_task_a_commit_comes_after_the_interval(
    world: World,
) -> None:
    world.gate("b1")
    worker = await world.start(concurrency=1, commit_interval_ms=20_000)
    world.send("A", "a1")
    world.send("B", "b1")
    await until(lambda: world.called() == ["a1", "b1"])
    await asyncio.sleep(18)
    assert world.effects() == {}
    await world.until_applied("a1")
    await worker.stop()


async def test_nothing_is_committed_while_nothing_is_done(world: World) -> None:
    worker = await world.start()
    for _ in range(3):
        world.send("A", "a1")
    await until(lambda: world.offset() == 3)
    commits = worker.engine.counters["commits"]
    await until(lambda: world.clock.now_ms() > world.calls[0].at_ms + 5_000)
    assert worker.engine.counters["commits"] == commits
    await worker.stop()


async def test_a_broken_invariant_stops_the_worker_and_commits_nothing(world: World) -> None:
    worker = world.worker()
    worker.backend.faults.fail("send", InvariantError("two and two are five"))
    worker.start()
    world.send("A", "a1")
    await until(lambda: worker.fatal)
    assert isinstance(worker.fatal, InvariantError)
    assert not worker.engine.is_ready()
    await worker.stop()
    assert world.offset() is None
    assert world.effects() == {}


@pytest.mark.parametrize("is_closing", [False, True], ids=["at work", "while it is released"])
async def test_a_defect_between_two_effects_of_a_message_commits_neither(
    world: World, is_closing: bool
) -> None:
    """An offset that no row can hold fails after the work was staged, before the inbox row is."""
    gate = world.gate("a1")
    worker = await world.start()
    partition = worker.engine.open_partition(0)
    assert partition is not None
    impossible = MemoryRecord("orders", 0, 1 << 70, 0, b"A", b"{}", [("message-id", b"a1")])
    partition.deliver("orders", [impossible])
    await gate.reached.wait()
    if is_closing:
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0.01)
        gate.open()
        await stopping
    else:
        gate.open()
        await until(lambda: not worker.engine.is_ready())
        await worker.stop()
    assert world.effects() == {}
    assert world.events() == []


async def test_a_defect_while_a_partition_is_released_in_the_middle_of_a_commit_commits_neither(
    world: World,
) -> None:
    """The commit under way ends well, which must not clear what the defect has spoilt."""
    gate = world.gate("a1")
    worker = world.worker()
    hold = worker.backend.faults.hold("commit")
    worker.start()
    world.send("B", "b1")
    await hold.reached.wait()
    partition = worker.engine.open_partition(0)
    assert partition is not None
    impossible = MemoryRecord("orders", 0, 1 << 70, 0, b"A", b"{}", [("message-id", b"a1")])
    partition.deliver("orders", [impossible])
    await gate.reached.wait()
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0.01)
    gate.open()
    await asyncio.sleep(0.01)
    hold.let_go()
    await stopping
    assert world.effects() == {"b1": 1}
    assert [event["done"] for event in world.events()] == ["b1"]


async def test_fencing_between_two_commits_costs_what_the_second_one_held(world: World) -> None:
    worker = await world.start(session_timeout_ms=1_000)
    world.send("A", "a1")
    await world.until_applied("a1")
    worker.backend.faults.fail("begin", LeaseLostError("fenced"))
    world.send("A", "a2")
    await world.until_applied("a2")
    assert world.called() == ["a1", "a2", "a2"]
    assert world.effects() == {"a1": 1, "a2": 1}
    assert worker.engine.counters["fences"] == 1
    await worker.stop()
