"""Every order in which three messages of two keys can go through the core, with a crash and more.

A small shell around the real core (`decide`, `Watermark`, `ParkedKey`): one owner at a time, a
lane per key, staged rows, commits that begin, land and are answered. Whatever can come next is
a choice; all choices are followed, to the end, and each state is looked at once. A crash and a
rebalance can come in every state, each once, in either order. A commit that was sent can still
land after a crash, until the next owner has fenced it.

Time is left out: a parked key is due at any moment after it was parked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from bookstore_streams.core.classify import Failure
from bookstore_streams.core.decide import Arrived, Decision, Due, Event, Failed, Succeeded, decide
from bookstore_streams.core.effects import (
    ApplyWork,
    Attempt,
    Count,
    DeadLetter,
    DropKey,
    DropMessage,
    Effect,
    RetryInLane,
    SaveInbox,
    SaveKey,
    SaveMessage,
    Settle,
)
from bookstore_streams.core.parking import ParkedKey
from bookstore_streams.core.policy import Jitter, Policy
from bookstore_streams.core.watermark import Watermark

#: By immediate attempts: without any, a message is parked as soon as it fails.
POLICIES = tuple(
    Policy(attempts_max=3, backoff_ms_base=1, jitter=Jitter.NONE, immediate_attempts=immediate)
    for immediate in range(2)
)
DOWN = Failure(True, "TransientError", "down")
NEVER = Failure(False, "PermanentError", "never")

#: What the calls of a message do, one letter each: ok, transient, permanent; then ok.
SCRIPTS = ("o", "to", "tto", "ttt", "p")
#: The keys of the three messages, up to their names.
KEYS = ((0, 0, 1), (0, 1, 0), (0, 1, 1))
#: The ids of the three messages; where two are equal the later one is a copy.
IDS = ((0, 1, 2), (0, 0, 2), (0, 1, 0), (0, 1, 1))


class Scenario(NamedTuple):
    """Three messages: key and id of each, what the calls of each id do, and the consumer."""

    keys: tuple[int, int, int]
    ids: tuple[int, int, int]
    scripts: tuple[str, str, str]
    has_hook: bool
    immediate: int = 0


class Kept(NamedTuple):
    """Rows and offset: what is committed, or would be.

    Attributes:
        inbox: by id.
        parked: by key.
        lot: by key, (sequence, offset) of each message.
        ended: by key, (id, fate) in order.
        letters: by id, how many.
        offset: of the next record.
    """

    inbox: tuple[str | None, ...] = (None,) * 3
    parked: tuple[ParkedKey | None, ...] = (None,) * 2
    lot: tuple[tuple[tuple[int, int], ...], ...] = ((),) * 2
    ended: tuple[tuple[tuple[int, str], ...], ...] = ((),) * 2
    letters: tuple[int, ...] = (0,) * 3
    offset: int = 0


class Running(NamedTuple):
    """A call under way: of the handler; or of the hook, with what was decided before it.

    Attributes:
        offset: of the message.
        attempt: which call of the handler it is, or was.
        decided: by the core, when this is a call of the hook.
        done: effects of that which were carried out before it.
    """

    offset: int
    attempt: Attempt
    decided: Decision | None = None
    done: int = 0


class Owner(NamedTuple):
    """What a worker has in memory.

    Attributes:
        next_offset: of the record to take next.
        slots: (offset, is settled) of each record above the watermark.
        lanes: by key, offsets in order.
        running: by key.
        staged: what the next commit would make of the rows.
        flush: the commit under way, and whether it has landed.
        is_leaving: whether it gives the partition back.
    """

    next_offset: int
    slots: tuple[tuple[int, bool], ...]
    lanes: tuple[tuple[int, ...], ...]
    running: tuple[Running | None, ...]
    staged: Kept
    flush: tuple[Kept, bool] | None = None
    is_leaving: bool = False


class State(NamedTuple):
    """The whole world.

    Attributes:
        late: a commit that was sent by an owner that is no more, and may still land.
        calls: by id, calls of the handler so far.
        crashes, rebalances: that can still come.
    """

    committed: Kept
    owner: Owner | None
    late: Kept | None
    calls: tuple[int, int, int]
    crashes: int
    rebalances: int


class PromiseBrokenError(AssertionError):
    """A state, or a step, that must not be; carries the way there."""


@dataclass
class Enumeration:
    """Follows every choice of one scenario.

    Attributes:
        states, steps: looked at so far.
        ends: states in which nothing more can happen by itself.
    """

    scenario: Scenario
    states: int = 0
    steps: int = 0
    ends: int = 0
    _way: dict[State, tuple[State, str] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._policy = POLICIES[self.scenario.immediate]

    def run(self, *, crashes: int = 1, rebalances: int = 1) -> None:
        """Follow them all.

        Raises:
            PromiseBrokenError: somewhere a promise does not hold.
        """
        first = State(Kept(), None, None, (0, 0, 0), crashes, rebalances)
        self._way[first] = None
        waiting = [first]
        while waiting:
            state = waiting.pop()
            self.states += 1
            is_moving = False
            try:
                for label, following in self._steps(state):
                    self.steps += 1
                    is_moving = is_moving or label not in {"crash", "rebalance"}
                    if following not in self._way:
                        self._way[following] = state, label
                        waiting.append(following)
            except AssertionError as error:
                raise PromiseBrokenError(f"{error}\n{self._story(state)}") from error
            if not is_moving:
                self.ends += 1
                self._check_end(state)

    def _story(self, state: State) -> str:
        lines = [f"{self.scenario}", f"in {state}"]
        known = self._way[state]
        while known is not None:
            state, label = known
            lines.append(f"after {label}")
            known = self._way[state]
        return "\n".join(lines)

    # -- what can happen ------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.late is not None:
            self._check(state.committed, state.late)
            yield "late commit lands", state._replace(committed=state.late, late=None)
        owner = state.owner
        if owner is None:
            yield "open", state._replace(owner=_opened(state.committed), late=None)
            return
        if state.crashes:
            yield "crash", self._without_owner(state._replace(crashes=state.crashes - 1))
        if state.rebalances and not owner.is_leaving:
            leaving = owner._replace(is_leaving=True)
            yield "rebalance", state._replace(rebalances=state.rebalances - 1, owner=leaving)
        yield from self._commit_steps(state, owner)
        for key in range(2):
            yield from self._key_steps(state, owner, key)
        if not owner.is_leaving and owner.next_offset < 3:
            yield f"take {owner.next_offset}", state._replace(owner=self._taken(owner))

    def _commit_steps(self, state: State, owner: Owner) -> Iterator[tuple[str, State]]:
        if owner.flush is None:
            marked = _marked(owner)
            if marked.staged != state.committed:
                flushing = marked._replace(flush=(marked.staged, False))
                yield "commit begins", state._replace(owner=flushing)
            elif owner.is_leaving and not any(owner.running):
                yield "given back", state._replace(owner=None)
        elif not owner.flush[1]:
            kept = owner.flush[0]
            self._check(state.committed, kept)
            landed = owner._replace(flush=(kept, True))
            yield "commit lands", state._replace(committed=kept, owner=landed)
        else:
            yield "commit is answered", state._replace(owner=owner._replace(flush=None))

    def _without_owner(self, state: State) -> State:
        assert state.owner is not None
        flush = state.owner.flush
        late = flush[0] if flush is not None and not flush[1] else None
        return state._replace(owner=None, late=late)

    def _taken(self, owner: Owner) -> Owner:
        offset = owner.next_offset
        key = self.scenario.keys[offset]
        return owner._replace(
            next_offset=offset + 1,
            slots=(*owner.slots, (offset, False)),
            lanes=_with(owner.lanes, key, (*owner.lanes[key], offset)),
        )

    def _key_steps(self, state: State, owner: Owner, key: int) -> Iterator[tuple[str, State]]:
        running = owner.running[key]
        if running is not None:
            yield f"key {key} call ends", self._ended(state, owner, key, running)
            if owner.is_leaving:
                cut = owner._replace(running=_with(owner.running, key, None))
                yield f"key {key} call is cut short", state._replace(owner=cut)
            return
        if owner.is_leaving:
            return
        parked, lane = owner.staged.parked[key], owner.lanes[key]
        if lane:
            known = owner.staged.inbox[self.scenario.ids[lane[0]]]
            yield f"key {key} turn", self._decided(state, key, lane[0], Arrived(known))
        elif parked is not None:
            offset = dict(owner.staged.lot[key])[parked.head]
            known = owner.staged.inbox[self.scenario.ids[offset]]
            yield f"key {key} due", self._decided(state, key, offset, Due(known))

    # -- the shell ------------------------------------------------------------------------------

    def _decided(self, state: State, key: int, offset: int, event: Event) -> State:
        """Ask the core, and begin the call or carry out the effects."""
        owner = state.owner
        assert owner is not None
        parked = owner.staged.parked[key]
        now_ms = parked.due_ms if parked is not None and isinstance(event, Due) else 0
        decision = decide(parked, event, now_ms, self._policy)
        first = decision.effects[0]
        if isinstance(first, Attempt):
            return self._called(state, key, Running(offset, first))
        return self._carried_out(state, key, Running(offset, Attempt(1, 1, 0)), decision)

    def _called(self, state: State, key: int, running: Running) -> State:
        """A call of the handler begins: nothing earlier of its key may be unfinished."""
        owner = state.owner
        assert owner is not None
        keys, ids = self.scenario.keys, self.scenario.ids
        ended = {message_id for message_id, _ in owner.staged.ended[key]}
        message_id = ids[running.offset]
        for offset in range(running.offset):
            if keys[offset] == key and ids[offset] != message_id:
                assert ids[offset] in ended, (
                    f"{message_id} is called before {ids[offset]} has ended"
                )
        assert message_id not in ended, f"{message_id} is called, but has ended"
        done = {each for key_ended in state.committed.ended for each, _ in key_ended}
        assert message_id not in done, f"{message_id} is called after its effect was committed"
        assert running.attempt.number <= self._policy.attempts_max, f"{running.attempt} is too many"
        return state._replace(owner=owner._replace(running=_with(owner.running, key, running)))

    def _ended(self, state: State, owner: Owner, key: int, running: Running) -> State:
        """A call ends as its script says; what was decided is carried out in one go."""
        if running.decided is not None:  # the hook
            idle = state._replace(owner=owner._replace(running=_with(owner.running, key, None)))
            return self._carried_out(idle, key, running, running.decided)
        message_id = self.scenario.ids[running.offset]
        script, calls = self.scenario.scripts[message_id], state.calls[message_id]
        what = script[calls] if calls < len(script) else "o"
        event: Event
        if what == "o":
            event = Succeeded(running.attempt)
        else:
            failure = DOWN if what == "t" else NEVER
            event = Failed(running.attempt, failure, str(message_id))
        decision = decide(owner.staged.parked[key], event, 0, self._policy)
        idle = state._replace(
            owner=owner._replace(running=_with(owner.running, key, None)),
            calls=_with(state.calls, message_id, calls + 1),
        )
        last = decision.effects[-1]
        if isinstance(last, RetryInLane):
            again = running._replace(attempt=last.attempt)
            return self._called(idle, key, again)
        return self._carried_out(idle, key, running, decision)

    def _carried_out(self, state: State, key: int, running: Running, decision: Decision) -> State:
        """The effects in order; a hook is a call of its own, before which anything can come."""
        owner = state.owner
        assert owner is not None
        is_hook_done = running.decided is not None
        for at in range(running.done, len(decision.effects)):
            effect = decision.effects[at]
            if isinstance(effect, DeadLetter) and self.scenario.has_hook and not is_hook_done:
                hook = running._replace(decided=decision, done=at)
                return state._replace(owner=owner._replace(running=_with(owner.running, key, hook)))
            owner = self._effect(owner, key, running.offset, effect)
        return state._replace(owner=owner)

    def _effect(self, owner: Owner, key: int, offset: int, effect: Effect) -> Owner:
        staged = owner.staged
        message_id, lot = self.scenario.ids[offset], owner.staged.lot[key]
        match effect:
            case ApplyWork():
                ended = (*staged.ended[key], (message_id, "applied"))
                staged = staged._replace(ended=_with(staged.ended, key, ended))
            case SaveInbox():
                inbox = _with(staged.inbox, message_id, str(effect.outcome))
                staged = staged._replace(inbox=inbox)
            case SaveMessage():
                assert effect.sequence not in dict(lot), f"{effect} overwrites"
                lot = (*lot, (effect.sequence, offset))
                staged = staged._replace(lot=_with(staged.lot, key, lot))
            case DropMessage():
                assert (effect.sequence, offset) in lot, f"{effect} drops another message"
                lot = tuple(each for each in lot if each[0] != effect.sequence)
                staged = staged._replace(lot=_with(staged.lot, key, lot))
            case SaveKey():
                staged = staged._replace(parked=_with(staged.parked, key, effect.key))
            case DropKey():
                staged = staged._replace(parked=_with(staged.parked, key, None))
            case DeadLetter():
                letters = staged.letters[message_id] + 1
                staged = staged._replace(
                    letters=_with(staged.letters, message_id, letters),
                    ended=_with(staged.ended, key, (*staged.ended[key], (message_id, "dead"))),
                )
            case Settle():
                assert owner.lanes[key][:1] == (offset,), "settled out of turn"
                slots = tuple((at, done or at == offset) for at, done in owner.slots)
                lanes = _with(owner.lanes, key, owner.lanes[key][1:])
                return owner._replace(slots=slots, lanes=lanes)
            case Count():
                pass
            case _:
                raise AssertionError(f"{effect} cannot join a commit")
        return owner._replace(staged=staged)

    # -- promises -------------------------------------------------------------------------------

    def _check(self, before: Kept, kept: Kept) -> None:
        """What a commit makes of the rows."""
        keys, ids = self.scenario.keys, self.scenario.ids
        assert kept.offset >= before.offset, "the offset goes back"
        for key in range(2):
            ended = [message_id for message_id, _ in kept.ended[key]]
            order = list(dict.fromkeys(i for i, k in zip(ids, keys, strict=True) if k == key))
            assert ended == order[: len(ended)], f"ended {ended}, sent {order}"
            assert kept.ended[key][: len(before.ended[key])] == before.ended[key]
            parked, lot = kept.parked[key], kept.lot[key]
            waiting = [] if parked is None else list(range(parked.head, parked.tail))
            assert [sequence for sequence, _ in lot] == waiting, f"{lot} waits, {parked}"
            assert [at for _, at in lot] == sorted(at for _, at in lot), "the lot is out of order"
        for offset in range(kept.offset):
            self._check_place(kept, offset)

    def _check_place(self, kept: Kept, offset: int) -> None:
        message_id, key = self.scenario.ids[offset], self.scenario.keys[offset]
        places = [fate for each, fate in kept.ended[key] if each == message_id]
        places += ["parked" for _, at in kept.lot[key] if self.scenario.ids[at] == message_id]
        assert len(places) == 1, f"{message_id} is passed, and in {places}"
        known = {"applied": "applied", "dead": "dead-lettered", "parked": "parked"}[places[0]]
        assert kept.inbox[message_id] == known, f"{message_id} is {known}: {kept.inbox}"
        assert kept.letters[message_id] == (places[0] == "dead"), f"letters {kept.letters}"

    def _check_end(self, state: State) -> None:
        kept = state.committed
        if kept.offset != 3 or any(kept.parked) or any(kept.lot):
            raise PromiseBrokenError(f"it is over, and not drained\n{self._story(state)}")


def _opened(committed: Kept) -> Owner:
    return Owner(committed.offset, (), ((),) * 2, (None,) * 2, committed)


def _marked(owner: Owner) -> Owner:
    """The owner whose staged rows carry the offset that may be committed with them."""
    watermark = Watermark()
    for offset, is_settled in owner.slots:
        slot = watermark.take(offset, 1)
        if is_settled:
            slot.settle()
    mark = watermark.advance()
    if mark is None:
        return owner
    left = owner.slots[len(owner.slots) - len(watermark) :]
    return owner._replace(slots=left, staged=owner.staged._replace(offset=mark))


def _with(values: Any, at: int, value: object) -> Any:
    """A tuple with one value replaced."""
    return (*values[:at], value, *values[at + 1 :])


def scenarios(
    scripts: tuple[str, ...] = SCRIPTS, ids_of: tuple[tuple[int, int, int], ...] = IDS
) -> Iterator[Scenario]:
    """Every scenario: keys, copies, what the calls do, with a hook and without."""
    for keys, ids in product(KEYS, ids_of):
        if any(keys[ids.index(i)] != keys[at] for at, i in enumerate(ids)):
            continue  # a copy has the key of what it is a copy of
        used = sorted(set(ids))
        for chosen in product(scripts, repeat=len(used)):
            script = ["o", "o", "o"]
            for message_id, each in zip(used, chosen, strict=True):
                script[message_id] = each
            for has_hook in (False, True):
                if has_hook and not {"p", "ttt"} & set(chosen):
                    continue
                for immediate in range(len(POLICIES)):
                    texts = script[0], script[1], script[2]
                    yield Scenario(keys, ids, texts, has_hook, immediate)
