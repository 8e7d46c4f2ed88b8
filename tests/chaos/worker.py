"""A worker of the bookstore that sends itself a signal at a chosen step of a commit.

`python tests/chaos/worker.py worker` is `faust -A bookstore_streams worker` with a probe:
CHAOS_STEP names a step of a commit, CHAOS_COUNT the how-manieth time it is taken, CHAOS_SIGNAL
what happens then (SIGKILL, or SIGSTOP for a worker that freezes there). CHAOS_TRACE names a
file that gets one byte per commit begun, so that whoever watches knows of work under way.
"opening" and "opened" are steps, too: a partition begins to recover, and has.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from bookstore_streams import app

STEP = os.environ.get("CHAOS_STEP")
SIGNAL = signal.Signals[os.environ.get("CHAOS_SIGNAL", "SIGKILL")]
TRACE = os.environ.get("CHAOS_TRACE")
_left = int(os.environ.get("CHAOS_COUNT", "1"))


def probe(step: str) -> None:
    global _left
    if TRACE is not None and step == "before-transaction":
        with open(TRACE, "ab") as trace:  # noqa: PTH123 - a path object costs a commit its time
            trace.write(b".")
    if step == STEP:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), SIGNAL)


async def open_and_probe(*args: Any) -> Any:
    probe("opening")
    opened = await _open(*args)
    probe("opened")
    return opened


app.engine.probe = probe
_backend: Any = app.engine._backend
_open = _backend.open
_backend.open = open_and_probe

if __name__ == "__main__":
    app.main()
