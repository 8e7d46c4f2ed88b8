"""Wrong versions of core and engine: each a few lines changed, in the simulation's process only.

A mutant is a text that stands exactly once in a module, and what stands there instead. When
the code changes, a mutant that no longer fits says so; say the same mistake in the new words.
"""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """One change: `old` stands exactly once in the module."""

    module: str
    old: str
    new: str


class Mutant(NamedTuple):
    """A mistake that somebody could make.

    Attributes:
        name: for the command line.
        mistake: what is wrong with it.
        edits: that make it.
    """

    name: str
    mistake: str
    edits: tuple[Edit, ...]


def _mutant(name: str, mistake: str, *edits: tuple[str, str, str]) -> Mutant:
    package = "bookstore_streams."
    return Mutant(name, mistake, tuple(Edit(package + m, old, new) for m, old, new in edits))


MUTANTS = (
    _mutant(
        "settle-before-save",
        "a record is settled before its dead letter is written",
        (
            "core.decide",
            """        letter,
        SaveInbox(Outcome.DEAD_LETTERED),
        Count(f"dead_letters:{letter.reason}"),
        Settle(),
""",
            """        Settle(),
        letter,
        SaveInbox(Outcome.DEAD_LETTERED),
        Count(f"dead_letters:{letter.reason}"),
""",
        ),
    ),
    _mutant(
        "no-dedupe",
        "the inbox is written and never asked",
        (
            "core.inbox",
            "return not (is_replay and outcome == Outcome.DEAD_LETTERED)",
            "return False",
        ),
    ),
    _mutant(
        "dedupe-before-transaction",
        "the inbox rows are on the disk before the transaction begins",
        (
            "engine.commit",
            '        self._probe("before-transaction")',
            '        self._probe("before-transaction")\n'
            "        inbox = {'inbox': dict(batch.writes.get('inbox', {}))}\n"
            "        self._journal.store.apply(inbox, {})",
        ),
    ),
    _mutant(
        "watermark-off-by-one",
        "the offset committed is one too high",
        (
            "core.watermark",
            "slot = Slot(offset + 1, consumers)",
            "slot = Slot(offset + 2, consumers)",
        ),
    ),
    _mutant(
        "watermark-passes-open-record",
        "a later success passes an earlier record that is still in flight",
        (
            "core.watermark",
            "while slots and not slots[0].unsettled:",
            "while slots and not slots[-1].unsettled:",
        ),
    ),
    _mutant(
        "first-of-two-consumers-settles",
        "a record counts as settled once the first of its consumers is done",
        ("core.watermark", "self.unsettled -= 1", "self.unsettled = 0"),
    ),
    _mutant(
        "follower-overtakes",
        "a message of a parked key is handled at once",
        (
            "engine.turns",
            """                if not self._lot.holds(consumer.name, key) and self._is_done_at_once(
                    consumer, turn
                ):""",
            "                if self._is_done_at_once(consumer, turn):",
        ),
    ),
    _mutant(
        "due-index-not-rebuilt",
        "parked keys are not scheduled when a partition opens",
        ("engine.schedule", "self._heap.append((due_ms, key))", "pass"),
    ),
    _mutant(
        "parked-keys-forgotten",
        "a restart does not know which keys are parked",
        ("engine.partition", "self._lot.fill(name, keys)", "keys"),
    ),
    _mutant(
        "park-twice",
        "a copy of a parked message is parked again",
        (
            "core.inbox",
            "    if outcome is None:\n        return False",
            "    if outcome is None or outcome == Outcome.PARKED:\n        return False",
        ),
    ),
    _mutant(
        "attempts-forgotten-over-restart",
        "a parked key begins to count anew when it is read from its row",
        ("core.parking", 'attempts=row["attempts"]', "attempts=0"),
    ),
    _mutant(
        "rounds-forgotten-over-restart",
        "the back-off begins anew when a key is read from its row",
        ("core.parking", 'rounds=row["rounds"]', "rounds=0"),
    ),
    _mutant(
        "verdict-forgotten-over-restart",
        "a message that was given up is tried again when its key is read from its row",
        ("core.parking", "doom=None if doom is None else Doom(*doom)", "doom=None"),
    ),
    _mutant(
        "fence-ignored",
        "a commit that another owner's fence refused counts as done",
        (
            "engine.commit",
            "        positions = await self._journal.commit(batch, self._probe)",
            "        from bookstore_streams.errors import LeaseLostError\n"
            "        positions = {}\n"
            "        with contextlib.suppress(LeaseLostError):\n"
            "            positions = await self._journal.commit(batch, self._probe)",
        ),
    ),
    _mutant(
        "unconfirmed-counts-as-done",
        "a commit that nobody answered counts as done",
        (
            "engine.commit",
            "        positions = await self._journal.commit(batch, self._probe)",
            "        from bookstore_streams.errors import TransportError\n"
            "        positions = {}\n"
            "        with contextlib.suppress(TransportError):\n"
            "            positions = await self._journal.commit(batch, self._probe)",
        ),
    ),
    _mutant(
        "emitted-id-not-stable",
        "ids of events differ from run to run",
        (
            "core.envelope",
            'name = f"{consumer}\\0{source_message_id}\\0{ordinal}"',
            "name = f'{consumer} {source_message_id} {ordinal} {__import__(\"uuid\").uuid4()}'",
        ),
    ),
    _mutant(
        "emitted-ids-collide",
        "two events of one message have the same id",
        (
            "core.envelope",
            'name = f"{consumer}\\0{source_message_id}\\0{ordinal}"',
            'name = f"{consumer}\\0{source_message_id}"',
        ),
    ),
    _mutant(
        "failed-hook-merged",
        "what a failed dead-letter hook wrote is kept",
        (
            "engine.carry_out",
            "            if failure is None:\n                self._staging.merge",
            "            self._staging.merge(context.writes, context.emissions)\n"
            "            if failure is None:\n                self._staging.merge",
        ),
    ),
    _mutant(
        "hook-events-lost",
        "of a dead-letter hook the rows are kept and the events are not",
        (
            "engine.carry_out",
            "            if failure is None:\n"
            "                self._staging.merge(context.writes, context.emissions)",
            "            if failure is None:\n"
            "                self._staging.merge(context.writes, [])",
        ),
    ),
    _mutant(
        "failing-hook-passed-over",
        "a dead letter is written although its hook failed",
        ("engine.carry_out", "                if not is_last_resort:", "                if False:"),
    ),
    _mutant(
        "failed-attempt-staged",
        "what an attempt wrote is staged before it has ended",
        (
            "engine.unit_of_work",
            "            self.writes[table, key] = value\n        else:",
            "            self.writes[table, key] = value\n"
            "            around.read.__self__.put(table, key, value)\n        else:",
        ),
    ),
    _mutant(
        "store-applied-before-commit",
        "the local store is written before the broker has committed",
        (
            "engine.commit",
            '        self._probe("before-transaction")',
            '        self._probe("before-transaction")\n'
            "        self._journal.store.apply(batch.writes, {})",
        ),
    ),
    _mutant(
        "offsets-before-rows",
        "offsets are committed in a transaction of their own, before the rows",
        (
            "engine.commit",
            '        self._probe("before-transaction")',
            '        self._probe("before-transaction")\n'
            "        if batch.marks and (batch.emissions or any(batch.writes.values())):\n"
            "            await self._journal.commit(Batch({}, [], batch.marks), self._probe)",
        ),
    ),
    _mutant(
        "rows-before-events",
        "rows and events are committed in two transactions",
        (
            "engine.commit",
            '        self._probe("before-transaction")',
            '        self._probe("before-transaction")\n'
            "        if batch.emissions and any(batch.writes.values()):\n"
            "            await self._journal.commit(Batch(batch.writes, [], {}), self._probe)",
        ),
    ),
    _mutant(
        "release-not-awaited",
        "a partition is given back while it is being closed",
        (
            "engine.engine",
            "            self._leave(number, self._release(self._seats.pop(number)))\n"
            "        await self._gone(asked)",
            "            self._leave(number, self._release(self._seats.pop(number)))",
        ),
        (
            "engine.engine",
            "for number, seat in seats.items()))\n        await self._gone(asked)",
            "for number, seat in seats.items()))",
        ),
    ),
    _mutant(
        "pause-does-not-hold",
        "a partition that stands still for a rebalance starts handlers",
        ("engine.hold", "        self._queue.hold()\n", ""),
        ("engine.hold", "        self._is_still = True\n", ""),
        ("engine.hold", "while busy - without_lease:", "while False:"),
    ),
    _mutant(
        "pause-does-not-wait",
        "handlers run on while the group gives their partition away",
        ("engine.hold", "while busy - without_lease:", "while False:"),
    ),
    _mutant(
        "no-inbox-row-when-parked",
        "a parked message leaves no row in the inbox",
        (
            "core.decide",
            "        SaveMessage(parked.head),\n        SaveKey(parked),\n"
            "        SaveInbox(Outcome.PARKED),\n",
            "        SaveMessage(parked.head),\n        SaveKey(parked),\n",
        ),
    ),
    _mutant(
        "no-inbox-row-of-follower",
        "a message parked behind another leaves no row in the inbox",
        (
            "core.decide",
            "            SaveKey(parked),\n            SaveInbox(Outcome.PARKED),\n",
            "            SaveKey(parked),\n",
        ),
    ),
    _mutant(
        "no-inbox-row-of-dead-letter",
        "a dead letter leaves no row in the inbox",
        (
            "core.decide",
            "        letter,\n        SaveInbox(Outcome.DEAD_LETTERED),\n        Count",
            "        letter,\n        Count",
        ),
    ),
    _mutant(
        "wait-begins-anew-on-restart",
        "a parked key waits longer after a restart than it had to before",
        (
            "engine.parking_lot",
            'return int(row[begin : row.index(b",", begin)])',
            'return int(row[begin : row.index(b",", begin)]) + 5_000',
        ),
    ),
    _mutant(
        "due-at-once-on-restart",
        "a parked key is tried as soon as its partition opens",
        ("engine.parking_lot", 'return int(row[begin : row.index(b",", begin)])', "return 0"),
        ("core.decide", " or state.due_ms > now_ms:", ":"),
    ),
    _mutant(
        "retry-after-ignored",
        "a failing side that asks for a wait is asked again sooner",
        ("core.backoff", "max(int(spread), retry_after_ms or 0)", "int(spread)"),
    ),
    _mutant(
        "back-off-does-not-grow",
        "every wait is as long as the first",
        ("core.backoff", "exponent = min(rounds - 1, 64)", "exponent = 0"),
    ),
    _mutant(
        "jitter-not-deterministic",
        "the same id and round wait differently from run to run",
        (
            "core.backoff",
            '    return int.from_bytes(blake2b(seed, digest_size=7).digest(), "big") / (1 << 56)',
            "    import random\n    return random.random()",
        ),
    ),
    _mutant(
        "replay-opens-inbox-twice",
        "a replay that is read again after a crash opens the inbox again",
        (
            "core.inbox",
            '    return bool(offset > row["offset"])',
            "    return True",
        ),
    ),
    _mutant(
        "replay-opens-applied",
        "a replay of a message that took effect is handled",
        (
            "core.inbox",
            "return not (is_replay and outcome == Outcome.DEAD_LETTERED)",
            "return not is_replay",
        ),
    ),
    _mutant(
        "unparked-too-early",
        "a key flows again while its last follower is still in the lot",
        ("core.parking", "        if self.count == 1:", "        if self.count <= 2:"),
    ),
    _mutant(
        "follower-overwrites",
        "two followers take the same place in the lot",
        ("core.parking", "replace(self, tail=self.tail + 1)", "self"),
    ),
    _mutant(
        "row-dropped-first",
        "the row of a parked head is dropped when its attempt begins",
        (
            "engine.turns",
            "            lane.head = turn\n            turn.round_started_ms",
            "            lane.head = turn\n"
            "            key = message_key(lane.consumer.name, lane.key, lane.parked.head)\n"
            "            self._staging.put(PARKED_MESSAGES, key, None)\n"
            "            self._committer.finish()\n"
            "            turn.round_started_ms",
        ),
    ),
    _mutant(
        "deadline-ignored",
        "retries go on past the deadline",
        ("core.deadline", "return deadline_ms is not None and at_ms > deadline_ms", "return False"),
    ),
    _mutant(
        "one-attempt-too-many",
        "a message gets one attempt more than the policy allows",
        (
            "core.decide",
            "if attempt.number >= policy.attempts_max:",
            "if attempt.number > policy.attempts_max:",
        ),
    ),
    _mutant(
        "lost-lease-counts-as-attempt",
        "an attempt that was not made for want of the lease is counted",
        (
            "engine.calls",
            "            is_repeated, begun = True, None\n",
            "            is_repeated, begun = True, None\n"
            "            attempt = Attempt(attempt.number + 1, attempt.in_round, attempt.rounds)\n",
        ),
    ),
    _mutant(
        "lease-ignored",
        "handlers start although the group may not count this worker any more",
        ("engine.hold", "return not self._is_still and self._ask_lease()", "return True"),
    ),
    _mutant(
        "dead-letter-lost",
        "a message that is given up is not published",
        (
            "engine.carry_out",
            "        self._staging.emissions.append(\n            dead_letter(",
            "        str(\n            dead_letter(",
        ),
    ),
    _mutant(
        "dead-letter-counts-from-one",
        "a dead letter says one attempt more than there was",
        (
            "engine.dead_letters",
            "RETRY_ATTEMPT: str(letter.attempts)",
            "RETRY_ATTEMPT: str(letter.attempts + 1)",
        ),
    ),
    _mutant(
        "events-twice",
        "an event is published twice",
        (
            "engine.staging",
            "        self.emissions += events",
            "        self.emissions += events * 2",
        ),
    ),
    _mutant(
        "commit-under-way-not-read",
        "a handler sees what is committed, and not what is staged",
        (
            "engine.partition",
            "            staging.get, self.hold",
            "            journal.store.get, self.hold",
        ),
    ),
    _mutant(
        "inbox-read-from-disk",
        "a message that was handled and is not committed yet is not known as a duplicate",
        (
            "engine.turns",
            "raw = self._staging.get(INBOX, turn.inbox_key)",
            "raw = self._staging._store.get(INBOX, turn.inbox_key)",
        ),
    ),
    _mutant(
        "two-tasks-in-one-lane",
        "a lane that runs is made to run by another task too",
        ("engine.turns", "        if lane.is_busy:\n            return None\n", ""),
    ),
    _mutant(
        "copies-under-two-keys-at-once",
        "two keys with one id are handled side by side",
        ("engine.turns", "        if others is None:\n", "        if True:\n"),
        ("engine.turns", " or turn.inbox_key in self._in_flight:", ":"),
    ),
    _mutant(
        "redelivery-taken-again",
        "records that were delivered before take a slot again",
        ("engine.partition", "            if record.offset < expected:", "            if False:"),
    ),
    _mutant(
        "ignored-never-settled",
        "a record that nobody wants is never settled",
        (
            "engine.turns",
            "            slot.settle()\n            self._committer",
            "            self._committer",
        ),
    ),
    _mutant(
        "broken-partition-goes-on",
        "a partition commits on after a commit of unknown outcome",
        (
            "engine.partition",
            "        self._committer.is_broken = True\n        if not self._is_closing:",
            "        if not self._is_closing:",
        ),
        (
            "engine.commit",
            "                except BaseException:\n                    self.is_broken = True\n",
            "                except BaseException:\n                    self._on_failure = str\n",
        ),
        (
            "engine.commit",
            "                self._on_failure(error)\n                return",
            "                continue",
        ),
    ),
)
