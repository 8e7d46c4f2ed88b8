"""The process of one contestant: started, looked at through /proc, told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Longer than any contestant takes to settle what it has in flight.
STOP_S_MAX = 30.0
LOG_LINES_SHOWN = 15


class WorkerError(Exception):
    """The contestant's process ended by itself, or would not end."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the process has used since it started.

    Attributes:
        cpu_s: seconds of user and system time, of all its threads.
        rss_mb_max: largest resident set so far, in MiB.
    """

    cpu_s: float
    rss_mb_max: float


class Worker:
    """One contestant's process.

    Attributes:
        log: file with everything it printed.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.log = log
        self._process = process

    @classmethod
    async def start(cls, command: list[str], log: Path) -> Worker:
        """Start `command` at the root of the repository; its log is added to."""
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C is ours to hand on, politely
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        """Of the process, also after it has ended."""
        return self._process.pid

    def usage(self) -> Usage:
        """Read /proc (Linux only): ru_maxrss would count the memory of the parent, too.

        Raises:
            WorkerError: the process has ended.
        """
        self.check()
        try:
            return _usage(Path("/proc") / str(self._process.pid))
        except (OSError, KeyError):  # it ended just now; what is left of it has no memory
            raise self.error("ended") from None

    def check(self) -> None:
        """Raises: WorkerError: the process has ended, with the end of what it printed."""
        if self._process.returncode is not None:
            raise self.error(f"ended with status {self._process.returncode}")

    async def wait(self) -> int:
        """Wait until it ends by itself; its exit status."""
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, and wait.

        Raises:
            WorkerError: it did not end in time and was killed.
        """
        if self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), STOP_S_MAX)
        except TimeoutError:
            await self.kill()
            raise self.error(f"did not stop in {STOP_S_MAX:.0f} s") from None

    async def kill(self) -> None:
        """SIGKILL, where it still runs."""
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def error(self, what: str) -> WorkerError:
        """An error that also shows the last lines the worker printed."""
        lines = self.log.read_text(errors="replace").splitlines()
        return WorkerError("\n".join([what, *lines[-LOG_LINES_SHOWN:]]))


def total(usages: Iterable[Usage]) -> Usage:
    """What several processes have used together; `rss_mb_max` is that of the largest."""
    found = list(usages)
    return Usage(sum(each.cpu_s for each in found), max(each.rss_mb_max for each in found))


def _usage(proc: Path) -> Usage:
    # Fields 14 and 15 of stat(5), counted behind the name, which may hold anything.
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    return Usage(
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        rss_mb_max=int(status["VmHWM"].split()[0]) / 1024,
    )
