"""The life of a key under any sequence of events, against a model that is a plain queue.

The shell here carries effects out on dictionaries, commits or crashes between any two
decisions, and starts again from what was committed. The model knows only which messages
arrived, in which order, and how often each may take effect: once.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from bookstore_streams.core.classify import Failure
from bookstore_streams.core.decide import (
    Arrived,
    DeadlinePassed,
    Decision,
    Due,
    Event,
    Failed,
    HookFailed,
    Rejected,
    Succeeded,
    decide,
    resume,
)
from bookstore_streams.core.effects import (
    ApplyWork,
    Attempt,
    Count,
    DeadLetter,
    DropKey,
    DropMessage,
    RetryInLane,
    SaveInbox,
    SaveKey,
    SaveMessage,
    Settle,
)
from bookstore_streams.core.envelope import Reason
from bookstore_streams.core.envelope import Rejected as RejectedRecord
from bookstore_streams.core.parking import ParkedKey
from bookstore_streams.core.policy import Policy
from bookstore_streams.core.watermark import Slot, Watermark

DOWN = Failure(True, "TransientError", "down")
NEVER = Failure(False, "PermanentError", "never")

POLICIES = st.builds(
    Policy,
    attempts_max=st.integers(1, 4),
    backoff_ms_base=st.integers(1, 1_000),
    immediate_attempts=st.integers(0, 2),
)


@dataclass
class Disk:
    """What survives a crash: one committed state.

    Attributes:
        messages: sequence -> (message id, offset it was read at), the rows of the lot.
        ended: offsets of messages that were applied or dead-lettered, as they ended.
    """

    inbox: dict[str, str] = field(default_factory=dict)
    key: ParkedKey | None = None
    messages: dict[int, tuple[str, int]] = field(default_factory=dict)
    applied: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    ended: list[int] = field(default_factory=list)
    offset: int = 0

    def copy(self) -> Disk:
        return Disk(
            dict(self.inbox),
            self.key,
            dict(self.messages),
            self.applied.copy(),
            self.dead.copy(),
            self.ended.copy(),
            self.offset,
        )


class KeyLife(RuleBasedStateMachine):
    """One key of one consumer, from its source topic to where each message ends."""

    messages = Bundle("messages")

    @initialize(policy=POLICIES)
    def begin(self, policy: Policy) -> None:
        self.policy = policy
        self.now_ms = 1_000
        self.topic: list[tuple[str, bool]] = []  # (message id, is a replay), by offset
        self.committed = Disk()
        self.replayed: Counter[str] = Counter()
        self.forgotten: set[str] = set()
        self.start()

    def start(self) -> None:
        """A worker that has just opened the partition."""
        self.disk = self.committed.copy()
        self.state = self.disk.key
        self.turns: deque[tuple[str, bool, Slot, int]] = deque()
        self.watermark = Watermark()
        self.next_offset = self.disk.offset
        self.ordered: tuple[str, int, Attempt] | None = None
        if self.state is not None:
            due_ms = resume(self.state, self.now_ms)
            assert due_ms is not None
            assert due_ms >= self.state.due_ms

    # -- the shell ------------------------------------------------------------------------

    def decide(self, event: Event) -> Decision:
        return decide(self.state, event, self.now_ms, self.policy)

    def carry_out(
        self, decision: Decision, message_id: str, offset: int, hook_works: bool = True
    ) -> None:
        disk, settled = self.disk, False
        for effect in decision.effects:
            assert not settled or isinstance(effect, Count)
            match effect:
                case ApplyWork():
                    disk.applied[message_id] += 1
                    disk.ended.append(offset)
                case SaveInbox():
                    disk.inbox[message_id] = effect.outcome
                case SaveMessage():
                    assert effect.sequence not in disk.messages
                    disk.messages[effect.sequence] = message_id, offset
                case DropMessage():
                    assert disk.messages.pop(effect.sequence) == (message_id, offset)
                case SaveKey():
                    disk.key = effect.key
                case DropKey():
                    disk.key = None
                case DeadLetter():
                    if not hook_works:
                        failed = HookFailed(effect, DOWN, message_id)
                        self.carry_out(self.decide(failed), message_id, offset)
                        return
                    disk.dead[message_id] += 1
                    disk.ended.append(offset)
                case Settle():
                    self.turns.popleft()[2].settle()
                    settled = True
                case Attempt():
                    self.ordered = message_id, offset, effect
                case RetryInLane():
                    self.ordered = message_id, offset, effect.attempt
        self.state = decision.state
        assert disk.key == self.state

    # -- what happens ---------------------------------------------------------------------

    @rule(target=messages, n=st.integers(0, 30))
    def produce(self, n: int) -> str:
        self.topic.append((f"m{n}", False))
        return f"m{n}"

    @rule(message_id=messages)
    def produce_again(self, message_id: str) -> None:
        self.topic.append((message_id, False))

    @rule(message_id=messages)
    def replay_a_dead_letter(self, message_id: str) -> None:
        if self.committed.dead[message_id]:
            self.topic.append((message_id, True))
            self.replayed[message_id] += 1

    @rule()
    def fetch(self) -> None:
        for offset in range(self.next_offset, len(self.topic)):
            self.turns.append((*self.topic[offset], self.watermark.take(offset, 1), offset))
        self.next_offset = len(self.topic)

    @precondition(lambda self: self.ordered is None and self.turns)
    @rule()
    def arrive(self) -> None:
        message_id, is_replay, _, offset = self.turns[0]
        event = Arrived(self.disk.inbox.get(message_id), is_replay)
        self.carry_out(self.decide(event), message_id, offset)

    @precondition(lambda self: self.ordered is None and self.state is not None)
    @rule()
    def come_due(self) -> None:
        assert self.state is not None
        self.now_ms = max(self.now_ms, self.state.due_ms)
        message_id, offset = self.disk.messages[self.state.head]
        known = self.disk.inbox.get(message_id)
        self.carry_out(self.decide(Due(known)), message_id, offset)

    @precondition(lambda self: self.ordered is None and self.disk.messages)
    @rule(draw=st.data())
    def forget(self, draw: st.DataObject) -> None:
        """The inbox row of a message that waits grows too old and is gone."""
        message_id, _ = self.disk.messages[draw.draw(st.sampled_from(sorted(self.disk.messages)))]
        for disk in (self.disk, self.committed):
            if disk.inbox.get(message_id) == "parked":
                del disk.inbox[message_id]
                self.forgotten.add(message_id)

    @precondition(lambda self: self.ordered is not None)
    @rule(
        outcome=st.sampled_from(["success", "success", "down", "never", "broken", "late"]),
        hook_works=st.booleans(),
    )
    def end_of_call(self, outcome: str, hook_works: bool) -> None:
        assert self.ordered is not None
        message_id, offset, attempt = self.ordered
        self.ordered = None
        self.now_ms += 1
        event: Event
        match outcome:
            case "success":
                event = Succeeded(attempt)
            case "down":
                event = Failed(attempt, DOWN, message_id)
            case "never":
                event = Failed(attempt, NEVER, message_id)
            case "broken":
                rejected = RejectedRecord(Reason.PERMANENT, "E", "broken", "A", message_id)
                event = Rejected(rejected, message_id)
            case _:
                event = DeadlinePassed(message_id, attempt.number)
        self.carry_out(self.decide(event), message_id, offset, hook_works)

    @rule()
    def commit(self) -> None:
        mark = self.watermark.advance()
        if mark is not None:
            self.disk.offset = mark
        self.committed = self.disk.copy()

    @rule()
    def crash(self) -> None:
        self.start()

    # -- what must hold -------------------------------------------------------------------

    @invariant()
    def nothing_takes_effect_twice(self) -> None:
        for disk in (self.disk, self.committed):
            assert all(count == 1 for count in disk.applied.values())
            for message_id, count in disk.dead.items():
                assert count <= 1 + self.replayed[message_id]

    @invariant()
    def every_committed_record_is_in_exactly_one_place(self) -> None:
        disk = self.committed
        waiting = Counter(message_id for message_id, _ in disk.messages.values())
        assert all(count == 1 for count in (waiting - Counter(self.forgotten)).values())
        for message_id, _ in self.topic[: disk.offset]:
            if message_id in self.forgotten:
                assert waiting[message_id] or disk.applied[message_id] or disk.dead[message_id]
                continue
            match disk.inbox[message_id]:
                case "applied":
                    assert disk.applied[message_id] == 1
                    assert not waiting[message_id]
                case "parked":
                    assert waiting[message_id] == 1
                    assert not disk.applied[message_id]
                case "dead-lettered":
                    assert disk.dead[message_id]
                    assert not disk.applied[message_id]
                    assert not waiting[message_id]

    @invariant()
    def the_lot_holds_head_to_tail(self) -> None:
        for disk in (self.disk, self.committed):
            expected = [] if disk.key is None else list(range(disk.key.head, disk.key.tail))
            assert sorted(disk.messages) == expected

    @invariant()
    def messages_wait_and_end_in_the_order_in_which_they_arrived(self) -> None:
        for disk in (self.disk, self.committed):
            waiting = [disk.messages[sequence][1] for sequence in sorted(disk.messages)]
            order = [*disk.ended, *waiting]
            assert order == sorted(set(order))

    @invariant()
    def only_the_first_unfinished_message_is_called(self) -> None:
        if self.ordered is None:
            return
        message_id, offset, _ = self.ordered
        if self.state is not None:
            assert (message_id, offset) == self.disk.messages[self.state.head]
        else:
            assert offset == self.turns[0][3]

    def teardown(self) -> None:
        """Everything drains once calls succeed, and each message has ended somewhere."""
        if not hasattr(self, "policy"):
            return
        self.start()
        self.fetch()
        for _ in range(10 * len(self.topic) + 10):
            if self.ordered is not None:
                self.end_of_call("success", True)
            elif self.state is not None and not self.turns:
                self.come_due()
            elif self.turns:
                self.arrive()
            else:
                break
        self.commit()
        assert self.committed.offset == len(self.topic)
        assert self.committed.key is None
        self.every_committed_record_is_in_exactly_one_place()
        self.nothing_takes_effect_twice()
        self.messages_wait_and_end_in_the_order_in_which_they_arrived()


KeyLife.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestKeyLife = KeyLife.TestCase
