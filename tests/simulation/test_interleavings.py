"""Three messages, two keys, one crash, one rebalance: every order there is, not a sample."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bookstore_streams.core.decide import Decision
from bookstore_streams.core.decide import decide as right
from bookstore_streams.core.effects import DeadLetter, SaveInbox, Settle
from tests.simulation import interleavings
from tests.simulation.interleavings import Enumeration, PromiseBrokenError, Scenario

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_every_order_of_three_messages_a_crash_and_a_rebalance_keeps_every_promise() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--interleavings", "few"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-2_000:]
    core, engine = re.findall(r"(\d+) states|(\d+) lives", run.stdout)
    assert int(core[0]) > 100_000
    assert int(engine[1]) > 5_000


def test_the_enumeration_finds_a_settle_before_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: object) -> Decision:
        decision = right(*arguments)  # type: ignore[arg-type]
        if not isinstance(decision.effects[0], DeadLetter) or Settle() not in decision.effects:
            return decision
        others = tuple(effect for effect in decision.effects if effect != Settle())
        return Decision(decision.state, (Settle(), *others))

    monkeypatch.setattr(interleavings, "decide", wrong)

    with pytest.raises(PromiseBrokenError, match="is passed, and in"):
        Enumeration(Scenario((0, 1, 0), (0, 1, 2), ("p", "o", "o"), True)).run()


def test_the_enumeration_finds_a_message_that_leaves_no_row_in_the_inbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(*arguments: object) -> Decision:
        decision = right(*arguments)  # type: ignore[arg-type]
        kept = [effect for effect in decision.effects if not isinstance(effect, SaveInbox)]
        return Decision(decision.state, tuple(kept))

    monkeypatch.setattr(interleavings, "decide", wrong)

    with pytest.raises(PromiseBrokenError):
        Enumeration(Scenario((0, 1, 0), (0, 1, 2), ("o", "o", "o"), False)).run()
