"""docs/state_machine.md tells what `decide` does, all of it, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

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
    TooLarge,
    decide,
)
from bookstore_streams.core.effects import Attempt, Count, DeadLetter, Effect, SaveInbox, SaveKey
from bookstore_streams.core.envelope import Ignored, Reason
from bookstore_streams.core.envelope import Rejected as RejectedRecord
from bookstore_streams.core.inbox import Outcome
from bookstore_streams.core.parking import Doom, KeyState, ParkedKey
from bookstore_streams.core.policy import Jitter, Policy

DOC = Path(__file__).parents[2] / "docs" / "state_machine.md"
NOW_MS = 1_000_000
POLICY = Policy(attempts_max=4, backoff_ms_base=1_000, jitter=Jitter.NONE, immediate_attempts=1)

PASSES = Failure(True, "TimeoutError", "slow")
LASTS = Failure(False, "ValueError", "wrong")
ATTEMPT = Attempt(number=2, in_round=2, rounds=1)
LETTER = DeadLetter("permanent", "ValueError", "wrong", 1)
REJECTED = RejectedRecord(Reason.UNDECODABLE, "DecodeError", "no JSON", "k", "m")


class Row(NamedTuple):
    """One row of the table of decisions."""

    state: str
    event: str
    when: str
    next: str
    effects: str


def failed(failure: Failure = PASSES, attempt: Attempt = ATTEMPT, deadline: int = 0) -> Failed:
    return Failed(attempt, failure, "m", 0, deadline or None)


# (event, words of the column "when") -> events for which they are true.
EVENTS: dict[tuple[str, str], list[Event]] = {
    ("Arrived", "the inbox does not know the id"): [Arrived(), Arrived(None, is_replay=True)],
    ("Arrived", "the inbox knows the id"): [
        *(Arrived(outcome) for outcome in Outcome),
        Arrived(Outcome.APPLIED, is_replay=True),
        Arrived(Outcome.PARKED, is_replay=True),
    ],
    ("Arrived", "the id was dead-lettered, and this is a replay"): [
        Arrived(Outcome.DEAD_LETTERED, is_replay=True)
    ],
    ("Ignored", "always"): [Ignored("tombstone"), Ignored("unknown-type")],
    ("Due", "always"): [Due()],
    ("Due", "its time has not come"): [Due()],
    ("Due", "its time has come"): [Due()],
    ("Due", "its time has come, a copy of the head is done"): [
        Due(Outcome.APPLIED),
        Due(Outcome.DEAD_LETTERED),
    ],
    ("Due", "its time has come, the head is doomed"): [Due(), Due(Outcome.PARKED)],
    ("Rejected", "always"): [Rejected(REJECTED, "m")],
    ("Succeeded", "always"): [Succeeded(ATTEMPT)],
    ("Failed", "permanent"): [failed(LASTS), failed(LASTS, deadline=NOW_MS - 1)],
    ("Failed", "transient, attempts spent"): [
        failed(attempt=Attempt(4, 1, 3)),
        failed(attempt=Attempt(9, 1, 3)),
    ],
    ("Failed", "transient, an immediate attempt is left"): [
        failed(attempt=Attempt(1, 1, 0)),
        failed(attempt=Attempt(1, 1, 0), deadline=NOW_MS + 50),
    ],
    ("Failed", "transient, the next attempt would come after the deadline"): [
        failed(deadline=NOW_MS),
        failed(attempt=Attempt(1, 1, 0), deadline=NOW_MS + 49),
        failed(Failure(True, "TransientError", "busy", 60_000), deadline=NOW_MS + 59_999),
    ],
    ("Failed", "transient, otherwise"): [
        failed(),
        failed(deadline=NOW_MS + 2_000),
        # Who asks for a wait gets no immediate attempt.
        failed(Failure(True, "TransientError", "busy", 1_000), Attempt(2, 1, 1)),
    ],
    ("DeadlinePassed", "always"): [DeadlinePassed("m", 1)],
    ("HookFailed", "always"): [HookFailed(LETTER, LASTS, "m"), HookFailed(LETTER, PASSES, "m")],
    ("TooLarge", "always"): [TooLarge(LASTS, 0), TooLarge(LASTS, 1)],
}


def keys(state: str, event: str, when: str) -> list[ParkedKey | None]:
    """States for which the first and third column are true."""
    if state == "flows":
        return [None]
    kinds = {"parked": list(KeyState), "waiting": [KeyState.WAITING], "held": [KeyState.HELD]}
    dues = [NOW_MS - 1, NOW_MS, NOW_MS + 1]
    dooms = [None, Doom("permanent", "ValueError", "wrong")]
    if state == "waiting" and event == "Due":
        dues = dues[2:] if "not come" in when else dues[:2]
        if "not come" not in when:
            dooms = {"doomed": dooms[1:], "done": dooms}.get(when.split()[-1], dooms[:1])
    return [
        ParkedKey(7, 7 + count, 1, 1, due_ms, "TimeoutError: slow", NOW_MS - 9, kind, doom)
        for kind, count, due_ms, doom in product(kinds[state], (1, 2, 3), dues, dooms)
    ]


def rows() -> list[Row]:
    """The table of decisions as it stands in the document."""
    _, _, section = DOC.read_text().partition("## Decisions")
    section, _, _ = section.partition("\n## ")
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [
        Row(*(cell.strip().replace("`", "") for cell in line.strip("|").split("|")))
        for line in lines
    ]


ROWS = rows()


def name_of(effect: Effect) -> str:
    """An effect as the document writes it; a count without the part that varies."""
    match effect:
        case Count(name):
            return f"Count({name.partition(':')[0]})"
        case SaveInbox(outcome):
            return f"SaveInbox({outcome.value})"
        case _:
            return type(effect).__name__


def expected_effects(row: Row, left: int) -> list[str]:
    if row.effects == "nothing":
        return []
    key = "SaveKey" if left else "DropKey"
    return [name.strip().replace("SaveKey*", key) for name in row.effects.split(",")]


def is_next(words: str, before: ParkedKey | None, decision: Decision) -> bool:
    """Whether the state after is what the column "next" says."""
    after = decision.state
    if words == "flows":
        return after is None
    if before is None:
        return (
            after is not None
            and (after.head, after.tail, after.state) == (0, 1, KeyState.WAITING)
            and after.due_ms > NOW_MS
            and (after.doom is not None) == ("doomed" in words)
        )
    if words == "next head due":
        if before.count == 1:
            return after is None
        expected = replace(
            before, head=before.head + 1, attempts=0, rounds=0, due_ms=NOW_MS, doom=None
        )
        return after is not None and expected == replace(
            after, history=before.history, cause=before.cause
        )
    if after is None or after.state is not before.state:
        return False
    if words == "same, one more at the end":
        return after == replace(before, tail=before.tail + 1)
    if "due later" in words:
        return (
            (after.head, after.tail) == (before.head, before.tail)
            and after.due_ms > NOW_MS
            and after.rounds == before.rounds + 1
            and ("doomed" not in words or after.doom is not None)
        )
    return words == "same" and after == before


def decisions(row: Row) -> Iterator[tuple[ParkedKey | None, Event, Decision]]:
    for before, event in product(keys(row.state, row.event, row.when), EVENTS[row.event, row.when]):
        yield before, event, decide(before, event, NOW_MS, POLICY)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.state} {row.event} {row.when}")
def test_a_row_tells_what_is_decided(row: Row) -> None:
    for before, event, decision in decisions(row):
        left = 0 if decision.state is None else decision.state.count
        names = [name_of(effect) for effect in decision.effects]
        assert names == expected_effects(row, left), (before, event)
        assert is_next(row.next, before, decision), (before, event, decision.state)


def test_every_state_meets_every_event_in_the_table() -> None:
    states = {"flows": {"flows"}, "waiting": {"waiting", "parked"}, "held": {"held", "parked"}}
    missing = [
        (state, event.__name__)
        for state, names in states.items()
        for event in get_args(Event)
        if not any(row.state in names and row.event == event.__name__ for row in ROWS)
    ]

    assert missing == []


def test_every_kind_of_an_event_stands_under_every_state() -> None:
    """What differs within an event (such as why a call failed) is not left out anywhere."""
    for event in get_args(Event):
        whens = {when for name, when in EVENTS if name == event.__name__}
        for names in ({"flows"}, {"waiting", "parked"}, {"held", "parked"}):
            told = {row.when for row in ROWS if row.event == event.__name__ and row.state in names}
            assert told == whens or event is Due, (event.__name__, names)
    assert {row.when for row in ROWS if row.event == "Due"} == {w for n, w in EVENTS if n == "Due"}


def test_what_a_state_row_says_is_what_is_saved() -> None:
    """`SaveKey` carries the state that follows, so that a restart finds the same."""
    for row in ROWS:
        for _, _, decision in decisions(row):
            saved = [effect.key for effect in decision.effects if isinstance(effect, SaveKey)]
            assert saved in ([], [decision.state])


def test_a_commit_settles_the_source_once_and_last_and_a_head_never() -> None:
    for row in ROWS:
        for _, _, decision in decisions(row):
            names = [name_of(effect) for effect in decision.effects]
            assert names.count("Settle") == (1 if names[-1:] == ["Settle"] else 0)
            if "DropMessage" in names:
                assert "Settle" not in names


def test_every_effect_event_and_state_is_explained() -> None:
    text = DOC.read_text()
    explained = {
        name
        for cell in re.findall(r"^\| (`.*?) \|", text, re.M)
        for name in re.findall(r"`(\w+)`", cell)
    }
    names = {kind.__name__ for kind in (*get_args(Effect), *get_args(Event))}

    assert names - explained == set()
    assert {"flows", *(state.value for state in KeyState)} - explained == set()
