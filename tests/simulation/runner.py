"""Runs many histories in child processes, and says which failed.

A child lives through a batch of histories and ends without tidying up: nothing of a history
is ever collected while it or its neighbours run, so no finalizer of a killed process' coroutine
has a say in what happens. A child that takes too long is ended, and its seed is a failure.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

BATCH = 50
# A batch takes a second or two; this is for a machine with much else to do.
BATCH_S_MAX = 300.0


class Failure(NamedTuple):
    """A history in which something went wrong."""

    seed: int
    checker: str
    text: str


@dataclass
class Report:
    """What came of many histories.

    Attributes:
        failures: in the order in which they were found.
        faults: kind -> how many of it came.
        seen: what the engine's counters tell -> in how many histories it was not 0.
        cpu_s: that the children took.
    """

    histories: int = 0
    steps: int = 0
    cpu_s: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    def add(self, other: Report) -> None:
        """Add what came of further histories."""
        self.histories += other.histories
        self.steps += other.steps
        self.cpu_s += other.cpu_s
        self.failures += other.failures
        self.faults += other.faults
        self.seen += other.seen


def prepare() -> None:
    """Make this process, and its children, one in which histories can be lived through."""
    from tests.simulation import clock
    from tests.simulation.world import World

    assert World is not None  # imported once here, not in every child
    gc.disable()
    logging.disable(logging.CRITICAL)
    clock.install()


def live(seed: int, report: Report) -> object:
    """Live through one history, and add what came of it; what was lived in, to be kept."""
    from tests.simulation.checker import Violation
    from tests.simulation.log import Fault
    from tests.simulation.world import World

    world = World(seed)
    try:
        world.run()
    except Violation as violation:
        report.failures.append(Failure(seed, violation.checker, str(violation)))
    except Exception as error:
        text = "".join(traceback.format_exception(error)[-3:])
        report.failures.append(Failure(seed, type(error).__name__, text))
    # Tasks of the next history have the same hashes: they must not meet these.
    asyncio.tasks._all_tasks.clear()  # type: ignore[attr-defined]
    report.histories += 1
    report.steps += world.loop.steps
    for entry in world.log.entries:
        if type(entry) is Fault:
            report.faults[entry.what.partition(" ")[0]] += 1
    report.seen.update(world.counted())
    return world


def run_many(
    first: int,
    histories: int,
    jobs: int,
    *,
    failures_max: int = 1,
    batch: int = BATCH,
    batch_s_max: float = BATCH_S_MAX,
    on_progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Live through seeds `first` to `first + histories - 1`.

    Args:
        first: seed.
        histories: how many.
        jobs: processes at once.
        failures_max: after so many no further batch is begun.
        batch: histories of one child.
        batch_s_max: seconds after which a child hangs.
        on_progress: called after each batch.
    """
    prepare()
    total = Report()
    batches = iter(range(first, first + histories, batch))
    end = first + histories
    children: dict[int, _Child] = {}
    while True:
        while len(children) < jobs and len(total.failures) < failures_max:
            start = next(batches, None)
            if start is None:
                break
            child = _Child(range(start, min(start + batch, end)), batch_s_max)
            children[child.pipe] = child
        if not children:
            return total
        for pipe in _readable(children):
            report = children[pipe].read()
            if report is not None:
                del children[pipe]
                total.add(report)
                on_progress(total)


def _readable(children: dict[int, _Child]) -> Iterator[int]:
    ready, _, _ = select.select(list(children), [], [], 1.0)
    now_s = time.monotonic()
    for pipe, child in list(children.items()):
        if pipe in ready:
            yield pipe
        elif now_s > child.ends_s:
            os.kill(child.pid, signal.SIGKILL)


class _Child:
    """A batch in a process of its own."""

    def __init__(self, seeds: range, s_max: float) -> None:
        self._seeds = seeds
        self._data = b""
        self.ends_s = time.monotonic() + s_max
        sys.stdout.flush()
        sys.stderr.flush()
        self.pipe, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _be_child(seeds, write)
        os.close(write)

    def read(self) -> Report | None:
        """What has come; the whole report once the child has ended."""
        data = os.read(self.pipe, 1 << 20)
        if data:
            self._data += data
            return None
        os.close(self.pipe)
        os.waitpid(self.pid, 0)
        *seeds, last = self._data.split(b"\n", len(self._seeds))
        if last:
            report: Report = pickle.loads(last)
            return report
        begun = self._seeds.start if not seeds else int(seeds[-1])
        ended = Failure(begun, "hang", "the process died in it, or it did not end")
        return Report(histories=len(seeds), failures=[ended])


def _be_child(seeds: range, pipe: int) -> None:
    """Never returns."""
    status = 1
    try:
        begun_s = time.process_time()
        report, kept = Report(), []
        for seed in seeds:
            os.write(pipe, b"%d\n" % seed)
            kept.append(live(seed, report))
        report.cpu_s = time.process_time() - begun_s
        _write(pipe, pickle.dumps(report))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _write(pipe: int, data: bytes) -> None:
    while data:
        data = data[os.write(pipe, data) :]
