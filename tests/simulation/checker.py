"""Judges a history by its log alone: what was sent, called, committed, and in which order.

From the committed records it rebuilds what a reader of the topics would know (the inbox, the
parking lot, effects, events, dead letters), and holds every entry against the promises. It
knows nothing of the engine but the format of its rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from bookstore_streams.core.parking import split_message_key, split_parked_key
from bookstore_streams.core.policy import Jitter
from bookstore_streams.core.record import unpack
from bookstore_streams.testing.memory import MemoryRecord, partition_of
from tests.simulation.backend import CHANGELOGS, EFFECTS
from tests.simulation.letters import original, what_is_wrong
from tests.simulation.log import (
    Asked,
    Called,
    Ended,
    Entry,
    Fenced,
    Gone,
    Heard,
    Landed,
    Opened,
    Quiet,
    Sent,
    Silent,
    Spec,
    Staged,
)
from tests.simulation.shop import EVENTS, LEFT_OVER

_TABLE_OF = {topic: table for table, topic in CHANGELOGS.items()}
# What never ends as a message does: nobody is told of it but by a counter.
IGNORED = frozenset({"tombstone", "unknown-type"})
# What comes without a call of the handler.
UNREADABLE = frozenset({"undecodable", "broken", "missing-id", "missing-key"})
LASTING = frozenset({"PermanentError", "ValueError", "CancelledError"})
# The first immediate attempt comes no sooner.
IMMEDIATE_MS_MIN = 50
# A parked key that is due is tried within this, once nothing goes wrong any more.
LATE_MS_MAX = 2_000

Where = tuple[str, str]  # consumer, key or message id


class Violation(Exception):  # noqa: N818 - it is no error of the program but its finding
    """A promise was broken.

    Attributes:
        checker: which promise.
    """

    def __init__(self, checker: str, text: str) -> None:
        self.checker = checker
        super().__init__(f"{checker}: {text}")


class _Life(NamedTuple):
    """What one worker did with a key since it opened the partition."""

    calls: dict[str, Called]
    ends: dict[str, Ended]
    finished: set[str]


class _Consumer:
    """What the topics say of one consumer, and what its handlers were seen to do.

    Attributes:
        inbox: message id -> outcome.
        keys: key -> row of the parked key.
        lot: key -> sequence -> message id, of the rows of parked messages.
        ended: message id -> how often it was applied or dead-lettered.
        applied: ids that took effect.
        order: (topic, key) -> ids in order of their first arrival.
        front: (topic, key) -> how many of them have ended, without a gap.
        effects: key -> value of its row of effects.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.inbox: dict[str, str] = {}
        self.keys: dict[str, dict[str, Any]] = {}
        self.lot: dict[str, dict[int, str]] = defaultdict(dict)
        self.ended: Counter[str] = Counter()
        self.applied: set[str] = set()
        self.letters: Counter[str] = Counter()
        self.order: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.front: dict[tuple[str, str], int] = defaultdict(int)
        self.effects: dict[str, bytes] = {}
        # key -> calls under way: worker -> the call
        self.running: dict[str, dict[str, Called]] = defaultdict(dict)
        # worker -> key -> what it did since it opened the key's partition
        self.lives: dict[str, dict[str, _Life]] = defaultdict(dict)
        # (message id, round, what was asked for) -> back-off
        self.waits: dict[tuple[str, int, int | None], int] = {}
        # (message id, attempt, epoch ms of its end) -> what the failure asked for
        self.asked_for: dict[tuple[str, int, int], int | None] = {}

    def life(self, worker: str, key: str) -> _Life:
        lives = self.lives[worker]
        life = lives.get(key)
        if life is None:
            life = lives[key] = _Life({}, {}, set())
        return life


class Judge:
    """Looks at the entries of a log, one after another."""

    def __init__(
        self, specs: Sequence[Spec], partitions: int, *, are_clocks_true: bool = True
    ) -> None:
        """Make a judge of one log.

        Args:
            specs: of the consumers.
            partitions: of every topic.
            are_clocks_true: whether times in rows can be held against those of the log.
        """
        self._are_clocks_true = are_clocks_true
        self._consumers = {spec.name: _Consumer(spec) for spec in specs}
        self._readers = {
            topic: [c for c in self._consumers.values() if topic in c.spec.topics]
            for spec in specs
            for topic in spec.topics
        }
        self._by_letters = {c.spec.dead_letter_topic: c for c in self._consumers.values()}
        self._partitions = partitions
        self._epochs: dict[int, int] = defaultdict(int)
        self._sent: dict[tuple[str, int], list[Sent]] = defaultdict(list)
        self._first: dict[str, Sent] = {}
        # Ids that came under more than one key: they have no place in the order of either.
        self._twins: set[str] = set()
        self._placed_at_ms: dict[str, int] = {}
        self._replays: Counter[str] = Counter()
        self._marks: dict[tuple[str, int], int] = defaultdict(int)
        self._lease_ends_ms: dict[str, int] = {}
        self._emitted: dict[tuple[str, str, int], Sequence[str]] = {}
        # When a partition was opened, or a call in it ended: until then others may have waited.
        self._active_ms: dict[int, int] = {}
        self._quiet_ms: int | None = None
        self._looks = {
            Sent: self._on_sent,
            Fenced: self._on_fenced,
            Opened: self._on_opened,
            Called: self._on_called,
            Ended: self._on_ended,
            Asked: self._on_asked,
            Staged: self._on_staged,
            Landed: self._on_landed,
            Silent: self._on_silent,
            Heard: self._on_heard,
            Gone: self._on_gone,
            Quiet: self._on_quiet,
        }

    def look(self, entry: Entry) -> None:
        """Hold one entry against the promises.

        Raises:
            Violation: one is broken.
        """
        look: Any = self._looks.get(type(entry))
        if look is not None:
            look(entry)

    # -- the group and the producers ------------------------------------------------------------

    def _on_sent(self, sent: Sent) -> None:
        record, message_id = sent.record, sent.message_id
        self._sent[record.topic, record.partition].append(sent)
        known = self._placed_at_ms.get(message_id, 0)
        self._placed_at_ms[message_id] = max(known, sent.placed_at_ms)
        if sent.kind == "replay":
            self._replays[message_id] += 1
        if message_id in self._first:
            if self._first[message_id].record.key != record.key:
                self._twins.add(message_id)
            return
        self._first[message_id] = sent
        if sent.kind not in IGNORED and record.key is not None:
            for consumer in self._readers[record.topic]:
                consumer.order[record.topic, record.key.decode()].append(message_id)

    def _on_fenced(self, fenced: Fenced) -> None:
        if fenced.epoch <= self._epochs[fenced.number]:
            raise Violation("fence", f"{fenced} was given before")
        self._epochs[fenced.number] = fenced.epoch

    def _on_opened(self, opened: Opened) -> None:
        self._active_ms[opened.number] = opened.at_ms
        for topic, offset in opened.offsets.items():
            if offset != self._marks[topic, opened.number]:
                raise Violation("watermark", f"{opened} does not go on at the committed offset")
        for consumer in self._consumers.values():
            lives = consumer.lives[opened.worker]
            for key in [k for k in lives if self._number(k) == opened.number]:
                del lives[key]

    def _on_silent(self, silent: Silent) -> None:
        self._lease_ends_ms[silent.worker] = silent.lease_ends_ms

    def _on_heard(self, heard: Heard) -> None:
        self._lease_ends_ms.pop(heard.worker, None)

    def _on_gone(self, gone: Gone) -> None:
        for consumer in self._consumers.values():
            for running in consumer.running.values():
                running.pop(gone.worker, None)

    def _on_quiet(self, quiet: Quiet) -> None:
        self._quiet_ms = quiet.at_ms

    def _number(self, key: str) -> int:
        return partition_of(key.encode(), self._partitions)

    def _is_stale(self, worker: str, at_ms: int) -> bool:
        ends_ms = self._lease_ends_ms.get(worker)
        return ends_ms is not None and ends_ms <= at_ms

    # -- calls ----------------------------------------------------------------------------------

    def _on_called(self, call: Called) -> None:
        consumer = self._consumers[call.consumer]
        running = consumer.running[call.key]
        is_hook, is_stale = not call.attempt, self._is_stale(call.worker, call.at_ms)
        for worker, other in running.items():
            if worker == call.worker or not self._is_stale(worker, call.at_ms):
                raise Violation("in-flight", f"{call} began while {other} runs")
        running[call.worker] = call
        for key, calls in consumer.running.items():
            beside = calls.get(call.worker) if key != call.key else None
            if beside is not None and beside.message_id == call.message_id:
                raise Violation("in-flight", f"{call} began while {beside} runs")
        life = consumer.life(call.worker, call.key)
        if is_stale:
            raise Violation("lease", f"{call} without a lease")
        self._check_settled(consumer, call)
        self._check_order(consumer, call, life)
        if not is_hook:
            self._check_attempt(consumer, call, life)
        life.calls[call.message_id] = call
        life.finished.discard(call.message_id)

    def _check_settled(self, consumer: _Consumer, call: Called) -> None:
        message_id = call.message_id
        if message_id in consumer.applied:
            raise Violation("once", f"{call} after it took effect")
        if consumer.ended[message_id] > self._replays[message_id]:
            raise Violation("once", f"{call} after it was given up, and nobody replayed it")

    def _check_order(self, consumer: _Consumer, call: Called, life: _Life) -> None:
        topic = self._first[call.message_id].record.topic
        where = topic, call.key
        order = consumer.order[where]
        ended = consumer.ended
        if ended[call.message_id] or call.message_id in self._twins:
            return  # a replay: its first place in the order was taken long ago
        for earlier in order[consumer.front[where] :]:
            if earlier == call.message_id:
                return
            if not ended[earlier] and earlier not in life.finished | self._twins:
                if self._first[earlier].kind in UNREADABLE:
                    continue  # given up without a call, in a commit still to come
                raise Violation("order", f"{call} while the earlier {earlier} is unfinished")

    def _check_attempt(self, consumer: _Consumer, call: Called, life: _Life) -> None:
        message_id, policy = call.message_id, consumer.spec.policy
        if call.attempt > policy.attempts_max:
            raise Violation("attempts", f"{call}: only {policy.attempts_max} are allowed")
        before, end = life.calls.get(message_id), life.ends.get(message_id)
        if message_id in life.finished:  # given up here, and replayed before that was committed
            if call.attempt != 1:
                raise Violation("attempts", f"{call}: a replay begins anew")
            return
        if before is None or end is None:
            self._check_resumed(consumer, call)
            return
        expected = before.attempt if end.result == "LeaseLostError" else before.attempt + 1
        if call.attempt != expected:
            raise Violation("attempts", f"{call}, but {before} was the last and ended {end.result}")
        if end.result == "LeaseLostError" or not self._are_clocks_true:
            return
        self._check_wait(consumer, call, end)
        deadline_ms = self._deadline_ms(consumer, message_id)
        is_late = deadline_ms is not None and call.at_ms > deadline_ms
        # One in a round that has begun may have had to wait for its turn, and any for the lease.
        if is_late and call.attempt_in_round == 1 and call.worker not in self._lease_ends_ms:
            raise Violation("deadline", f"{call} after {deadline_ms}")

    def _check_resumed(self, consumer: _Consumer, call: Called) -> None:
        """The first call of a message by this owner: what is committed says which it is."""
        row = consumer.keys.get(call.key)
        expected = 1
        if row is not None and consumer.lot[call.key].get(row["head"]) == call.message_id:
            expected = row["attempts"] + 1
            if self._are_clocks_true:
                self._check_due(call, row["due_ms"])
        if call.attempt != expected:
            raise Violation("attempts", f"{call}, but {expected} is next")

    def _check_due(self, call: Called, due_ms: int) -> None:
        if call.at_ms < due_ms:
            raise Violation("back-off", f"{call} before it was due at {due_ms}")
        if self._quiet_ms is None:
            return
        since_ms = max(due_ms, self._quiet_ms, self._active_ms[self._number(call.key)])
        if call.at_ms > since_ms + LATE_MS_MAX:
            raise Violation("back-off", f"{call} is {call.at_ms - since_ms} ms late")

    def _check_wait(self, consumer: _Consumer, call: Called, end: Ended) -> None:
        waited_ms, policy = call.at_ms - end.at_ms, consumer.spec.policy
        if call.attempt_in_round > 1:
            least_ms = IMMEDIATE_MS_MIN
        else:
            base_ms = min(policy.backoff_ms_base, policy.backoff_ms_max)
            least_ms = {Jitter.NONE: base_ms, Jitter.EQUAL: base_ms // 2, Jitter.FULL: 0}[
                policy.jitter
            ]
        least_ms = max(least_ms, end.retry_after_ms or 0)
        if waited_ms < least_ms:
            raise Violation("back-off", f"{call} after {waited_ms} ms, not {least_ms}")

    def _deadline_ms(self, consumer: _Consumer, message_id: str) -> int | None:
        deadline_ms = consumer.spec.policy.deadline_ms
        return None if deadline_ms is None else self._placed_at_ms[message_id] + deadline_ms

    def _on_ended(self, end: Ended) -> None:
        consumer = self._consumers[end.consumer]
        consumer.running[end.key].pop(end.worker, None)
        self._active_ms[self._number(end.key)] = end.at_ms
        life, message_id = consumer.life(end.worker, end.key), end.message_id
        if end.attempt:
            life.ends[message_id] = end
            consumer.asked_for[message_id, end.attempt, end.at_ms] = end.retry_after_ms
        is_over = end.result == "ok"
        if end.attempt and not consumer.spec.has_hook and end.result != "LeaseLostError":
            is_over = is_over or end.result in LASTING
            is_over = is_over or end.attempt >= consumer.spec.policy.attempts_max
        if is_over:
            life.finished.add(message_id)
        if end.result == "ok":
            self._check_emitted(end)

    def _check_emitted(self, end: Ended) -> None:
        what = end.consumer, end.message_id, min(end.attempt, 1)
        known = self._emitted.setdefault(what, end.emitted)
        if list(known) != list(end.emitted) or len(set(known)) != len(known):
            raise Violation("emitted-ids", f"{end} emitted {known} before")

    def _on_asked(self, asked: Asked) -> None:
        if self._is_stale(asked.worker, asked.at_ms):
            raise Violation("lease", f"{asked} without a lease")

    def _on_staged(self, staged: Staged) -> None:
        """A row that was sent; it need not be committed to show how a back-off was drawn."""
        if staged.table != "parked_keys" or staged.value is None:
            return
        row = orjson.loads(staged.value)
        if not row["rounds"] or not row["history"]:
            return
        name, _ = split_parked_key(staged.key)
        consumer = self._consumers[name]
        at_ms, attempt, message_id, _ = row["history"][-1]
        if row["doom"] is not None:
            return
        in_round_max = 1 + consumer.spec.policy.immediate_attempts
        if not row["rounds"] <= row["attempts"] <= row["rounds"] * in_round_max:
            raise Violation("attempts", f"{message_id} had {row['attempts']} in {row['rounds']}")
        if not self._are_clocks_true:
            return
        asked_ms = consumer.asked_for[message_id, attempt, at_ms]
        wait_ms = row["due_ms"] - at_ms
        self._check_backoff(consumer, message_id, row["rounds"], wait_ms, asked_ms)
        deadline_ms = self._deadline_ms(consumer, message_id)
        if deadline_ms is not None and row["due_ms"] > deadline_ms:
            raise Violation("deadline", f"{message_id} is due at {row['due_ms']}, after it")

    def _check_backoff(
        self,
        consumer: _Consumer,
        message_id: str,
        rounds: int,
        wait_ms: int,
        asked_ms: int | None,
    ) -> None:
        policy = consumer.spec.policy
        full = policy.backoff_ms_base * policy.backoff_factor ** (rounds - 1)
        full_ms = int(min(full, policy.backoff_ms_max))
        least_ms = {Jitter.NONE: full_ms, Jitter.EQUAL: full_ms // 2, Jitter.FULL: 0}[policy.jitter]
        if not max(least_ms, asked_ms or 0) <= wait_ms <= max(full_ms, asked_ms or 0):
            raise Violation(
                "back-off",
                f"{message_id} waits {wait_ms} ms after round {rounds}; the policy says "
                f"{least_ms} to {full_ms}, and it was asked for {asked_ms}",
            )
        known_ms = consumer.waits.setdefault((message_id, rounds, asked_ms), wait_ms)
        if known_ms != wait_ms:
            raise Violation("back-off", f"{message_id} waits {wait_ms} ms, and {known_ms} before")

    # -- what is committed ----------------------------------------------------------------------

    def _on_landed(self, landed: Landed) -> None:
        if landed.epoch != self._epochs[landed.number]:
            raise Violation("fence", f"{landed.worker} commits with epoch {landed.epoch}")
        begun: list[tuple[_Consumer, str, str]] = []  # consumer, message id, fate
        told: Counter[tuple[str, str, str]] = Counter()
        letters: list[tuple[_Consumer, str]] = []
        touched: set[tuple[str, str]] = set()
        moved: list[tuple[_Consumer, str, str | None]] = []
        for record in landed.records:
            table = _TABLE_OF.get(record.topic)
            if table is None:
                self._on_event(record, told, letters)
            elif table == EFFECTS:
                self._on_effect(record, begun)
            elif table == "inbox":
                self._on_inbox(record, moved)
            else:
                self._on_parking(record, table, touched)
        self._check_endings(begun, told, letters, moved)
        for name, key in touched:
            self._check_parked(self._consumers[name], key)
        self._check_marks(landed)

    def _on_event(
        self,
        record: MemoryRecord,
        told: Counter[tuple[str, str, str]],
        letters: list[tuple[_Consumer, str]],
    ) -> None:
        if record.topic == EVENTS:
            event = orjson.loads(record.value or b"")
            told[event["by"], event["id"], event["fate"]] += 1
            return
        consumer = self._by_letters[record.topic]
        topic, number, offset = original(record)
        source = self._sent[topic, number][offset]
        wrong = what_is_wrong(consumer.spec, record, source)
        if wrong is not None:
            raise Violation("dead-letters", f"that of {source.message_id}: {wrong}")
        letters.append((consumer, source.message_id))

    def _on_effect(self, record: MemoryRecord, begun: list[tuple[_Consumer, str, str]]) -> None:
        row_key, value = record.key or b"", record.value
        if row_key.startswith(LEFT_OVER):
            if value is not None:
                raise Violation("atomic", f"the row {row_key!r} of a failed attempt was committed")
            return
        name, _, key = row_key.decode().partition("/")
        consumer = self._consumers[name]
        before = consumer.effects.get(key, b"")
        if value is None or not value.startswith(before):
            raise Violation("once", f"effects of {row_key!r} were {before!r}, and are {value!r}")
        consumer.effects[key] = value
        for fate in value[len(before) :].decode().split():
            what, _, message_id = fate.partition(":")
            begun.append((consumer, message_id, what))

    def _on_inbox(
        self, record: MemoryRecord, moved: list[tuple[_Consumer, str, str | None]]
    ) -> None:
        name, _, message_id = (record.key or b"").decode().partition("\0")
        consumer = self._consumers[name]
        if record.value is None:
            raise Violation("once", f"the inbox forgot {message_id}")
        outcome = orjson.loads(record.value)["outcome"]
        moved.append((consumer, message_id, consumer.inbox.get(message_id)))
        consumer.inbox[message_id] = outcome

    def _on_parking(self, record: MemoryRecord, table: str, touched: set[tuple[str, str]]) -> None:
        row_key = record.key or b""
        if table == "parked_keys":
            name, key = split_parked_key(row_key)
            keys = self._consumers[name].keys
            if record.value is None:
                keys.pop(key, None)
            else:
                keys[key] = orjson.loads(record.value)
        else:
            name, key, sequence = split_message_key(row_key)
            lot = self._consumers[name].lot[key]
            if record.value is None:
                lot.pop(sequence, None)
            else:
                stored = unpack(record.value)
                ids = [v for k, v in stored.headers if k == "message-id" and v is not None]
                position = f"{stored.topic}-{stored.partition}-{stored.offset}"
                lot[sequence] = ids[-1].decode() if ids else position
        touched.add((name, key))

    def _check_endings(
        self,
        begun: list[tuple[_Consumer, str, str]],
        told: Counter[tuple[str, str, str]],
        letters: list[tuple[_Consumer, str]],
        moved: list[tuple[_Consumer, str, str | None]],
    ) -> None:
        """What ended in one commit: effects, inbox, events and letters must tell the same."""
        effects = Counter((c.spec.name, message_id, fate) for c, message_id, fate in begun)
        begun_by = Counter((c.spec.name, message_id) for c, message_id, _ in begun)
        for (name, message_id, fate), count in told.items():
            wanted = (
                begun_by[name, message_id] if fate == "begun" else effects[name, message_id, fate]
            )
            if count != wanted:
                raise Violation("atomic", f"{message_id}: {count} events {fate}, {wanted} effects")
        for what, count in effects.items():
            if told[what] != count:
                raise Violation("atomic", f"{what} took effect without its event")
        by_letter = Counter((c.spec.name, message_id) for c, message_id in letters)
        for (name, message_id), count in by_letter.items():
            consumer = self._consumers[name]
            consumer.letters[message_id] += count
            if consumer.spec.has_hook and self._first[message_id].kind not in UNREADABLE:
                if effects[name, message_id, "dead"] != count:
                    raise Violation("atomic", f"{message_id}: a dead letter without its hook")
            else:
                # Where in the commit it was is not told; what comes after it can be a replay.
                begun[:0] = [(consumer, message_id, "dead")] * count
        for consumer, message_id, fate in begun:
            self._end(consumer, message_id, fate)
        for consumer, message_id, fate in begun:
            self._check_end_order(consumer, message_id)
            if fate == "dead" and not by_letter[consumer.spec.name, message_id]:
                raise Violation("dead-letters", f"{message_id} was given up without a letter")
        endings = {(c.spec.name, message_id): fate for c, message_id, fate in begun}
        for consumer, message_id, before in moved:
            self._check_moved(consumer, message_id, before, endings)
        for name, message_id in endings:
            if self._consumers[name].inbox.get(message_id) is None:
                raise Violation("atomic", f"{message_id} ended without its inbox row")

    def _end(self, consumer: _Consumer, message_id: str, fate: str) -> None:
        if message_id in consumer.applied:
            raise Violation("once", f"{message_id} is {fate} after it took effect")
        if fate == "applied":
            consumer.applied.add(message_id)
        consumer.ended[message_id] += 1
        if consumer.ended[message_id] > 1 + self._replays[message_id]:
            raise Violation("once", f"{message_id} ended {consumer.ended[message_id]} times")

    def _check_end_order(self, consumer: _Consumer, message_id: str) -> None:
        record = self._first[message_id].record
        if record.key is None:
            return
        where = record.topic, record.key.decode()
        order, front = consumer.order[where], consumer.front[where]
        while front < len(order) and (consumer.ended[order[front]] or order[front] in self._twins):
            front += 1
        consumer.front[where] = front
        if message_id in order[front:] and message_id not in self._twins:
            raise Violation("order", f"{message_id} ended before the earlier {order[front]}")

    def _check_moved(
        self,
        consumer: _Consumer,
        message_id: str,
        before: str | None,
        endings: dict[tuple[str, str], str],
    ) -> None:
        outcome = consumer.inbox[message_id]
        if before == "applied":
            raise Violation("once", f"the inbox took {message_id} again: {outcome}")
        fate = endings.get((consumer.spec.name, message_id))
        if outcome == "parked":
            if before == "dead-lettered" and not self._replays[message_id]:
                raise Violation("once", f"{message_id} is parked again after its dead letter")
        elif fate is None or fate[:4] != outcome[:4]:
            raise Violation("atomic", f"the inbox says {message_id} is {outcome}, it was {fate}")

    def _check_parked(self, consumer: _Consumer, key: str) -> None:
        row, lot = consumer.keys.get(key), consumer.lot[key]
        if row is None:
            if lot:
                raise Violation("parking", f"{key} is not parked, but {lot} is in the lot")
            return
        if sorted(lot) != list(range(row["head"], row["tail"])) or not lot:
            raise Violation("parking", f"{key} has {row['head']} to {row['tail']}, the lot {lot}")
        ids = [lot[sequence] for sequence in sorted(lot)]
        if len(set(ids)) != len(ids):
            raise Violation("parking", f"{key} has {ids} in the lot")
        for message_id in ids:
            if consumer.inbox.get(message_id) != "parked":
                raise Violation("parking", f"{message_id} is in the lot, not in the inbox")
        places: dict[str, int] = {}
        for message_id in ids:
            if message_id in self._twins:
                continue
            topic = self._first[message_id].record.topic
            place = consumer.order[topic, key].index(message_id)
            if place < places.get(topic, -1) and not self._replays[message_id]:
                raise Violation("order", f"{key} has {ids} in the lot")
            places[topic] = max(place, places.get(topic, -1))

    def _check_marks(self, landed: Landed) -> None:
        for topic, mark in landed.marks.items():
            where = topic, landed.number
            before = self._marks[where]
            if mark < before:
                raise Violation("watermark", f"{topic} goes back from {before} to {mark}")
            self._marks[where] = mark
            sent = self._sent[where]
            if mark > len(sent):
                raise Violation("watermark", f"{topic} is committed at {mark} of {len(sent)}")
            for passed in sent[before:mark]:
                for consumer in self._readers[topic]:
                    self._check_place(consumer, passed)

    def _check_place(self, consumer: _Consumer, sent: Sent) -> None:
        """A record whose offset is committed is in exactly one place."""
        message_id = sent.message_id
        if sent.kind in IGNORED:
            return
        places = []
        if message_id in consumer.applied:
            places.append("applied")
        elif consumer.letters[message_id]:
            places.append("dead-lettered")
        if any(message_id in lot.values() for lot in consumer.lot.values()):
            places = ["parked", *(p for p in places if p == "applied")]
        if len(places) != 1:
            raise Violation("watermark", f"{sent} is passed, and in {places or 'no place'}")
        if consumer.inbox.get(message_id) != places[0]:
            raise Violation(
                "watermark", f"{sent} is {places[0]}, the inbox {consumer.inbox.get(message_id)}"
            )

    # -- the end --------------------------------------------------------------------------------

    def is_drained(self) -> bool:
        """Whether everything that was sent is settled, and nothing is parked."""
        for where, sent in self._sent.items():
            if self._marks[where] != len(sent):
                return False
        return not any(consumer.keys for consumer in self._consumers.values())

    def what_is_left(self) -> str:
        """What has not drained."""
        left = [
            f"{topic}/{number} at {self._marks[topic, number]} of {len(sent)}"
            for (topic, number), sent in self._sent.items()
            if self._marks[topic, number] != len(sent)
        ]
        left += [f"{c.spec.name} has {c.keys} parked" for c in self._consumers.values() if c.keys]
        return "; ".join(left) or "nothing"

    def finish(self) -> None:
        """Look at the end: everything that was sent has ended, once, everywhere."""
        if not self.is_drained():
            raise Violation("drain", self.what_is_left())
        for (topic, _), sent in self._sent.items():
            for each in sent:
                for consumer in self._readers[topic]:
                    self._check_place(consumer, each)
                    if each.kind not in IGNORED and not consumer.ended[each.message_id]:
                        raise Violation("missing", f"{each} never ended")
