"""A worker of the bookstore that sends itself a signal at a chosen step of a commit.

`python tests/chaos/worker.py worker` is `faust -A bookstore_streams worker` with a probe:
CHAOS_STEP names a step of a commit, CHAOS_COUNT the how-manieth time it is taken, CHAOS_SIGNAL
what happens then (SIGKILL, or SIGSTOP for a worker that freezes there). CHAOS_TRACE names a
file that gets one byte per commit begun, so that whoever watches knows of work under way.
"opening" and "opened" are steps, too: a partition begins to recover, and has. CHAOS_CLOCK
names a file with a number, eight bytes: so many nanoseconds the wall clock is ahead. Whoever
writes it sets the clock of the running worker; the monotonic clock goes on as it does.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from typing import Any

from bookstore_streams import app

STEP = os.environ.get("CHAOS_STEP")
SIGNAL = signal.Signals[os.environ.get("CHAOS_SIGNAL", "SIGKILL")]
TRACE = os.environ.get("CHAOS_TRACE")
CLOCK = os.environ.get("CHAOS_CLOCK")
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


def set_clock_by(name: str) -> None:
    file = os.open(name, os.O_RDWR)
    ahead_ns = memoryview(mmap.mmap(file, 8)).cast("q")
    real_ns = time.time_ns
    time.time_ns = lambda: real_ns() + ahead_ns[0]
    time.time = lambda: time.time_ns() / 1e9


async def open_and_probe(*args: Any) -> Any:
    probe("opening")
    opened = await _open(*args)
    probe("opened")
    return opened


app.engine.probe = probe
_backend: Any = app.engine._backend
_open = _backend.open
_backend.open = open_and_probe

if CLOCK is not None:
    set_clock_by(CLOCK)

if __name__ == "__main__":
    app.main()
