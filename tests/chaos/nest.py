"""Starts workers by forking a process that has imported what they need already.

Two thirds of what a worker's start costs is importing libraries, where no fault means anything;
without it a thousand of them can be killed in a sitting. A forked worker reads its settings,
opens its files and connects as any other does: only modules are shared, and none of those that
read settings.

`python tests/chaos/nest.py` reads an order a line (JSON: environment, log file, file for its
exit status), answers with a process id, and writes that file when the process has ended.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests" / "chaos" / "worker.py"
PRELOADED = ("faust.cli.worker", "faust.cli.faust", "bookstore_streams.kafka.app")
POLL_S = 0.02


class Forked:
    """A process of a nest, in the terms of `subprocess.Popen`."""

    def __init__(self, pid: int, status: Path, nest: subprocess.Popen[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._nest = nest

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            is_alone = self._nest.poll() is not None
            if self._status.exists():
                self.returncode = int(self._status.read_text())
            elif is_alone:
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
                raise RuntimeError("the nest has ended before its workers; see nest.log")
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        ends = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if ends is not None and time.monotonic() > ends:
                raise subprocess.TimeoutExpired(str(WORKER), timeout or 0.0)
            time.sleep(POLL_S)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


class Nest:
    """The process that forks workers; it ends with the block, and does not end them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = 0

    def __enter__(self) -> Self:
        ours = {name: v for name, v in os.environ.items() if not name.startswith("BOOKSTORE_")}
        with (self._folder / "nest.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                cwd=ROOT,
                env={**ours, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self

    def start(self, env: Mapping[str, str], log: Path) -> Forked:
        """Fork a worker with exactly this environment that writes to this file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._started += 1
        status = self._folder / f"nest-{self._started}.status"
        order = {"env": dict(env), "log": str(log), "status": str(status)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self._folder / "nest.log").read_text()
        return Forked(int(answer), status, self._process)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=30)


def main() -> None:
    """Fork a worker per line of standard input, until that ends."""
    for name in PRELOADED:
        __import__(name)
    gc.collect()
    gc.freeze()
    files: dict[int, Path] = {}
    ended: dict[int, int] = {}

    def reap(*_: object) -> None:
        """Interrupts anything, itself included: each step happens once, whoever comes first."""
        with suppress(ChildProcessError):
            while (child := os.waitpid(-1, os.WNOHANG))[0]:
                ended[child[0]] = os.waitstatus_to_exitcode(child[1])
        for pid in [pid for pid in list(ended) if pid in files]:
            file, status = files.pop(pid, None), ended.pop(pid, None)
            if file is not None and status is not None:
                half = file.with_suffix(".half")
                half.write_text(str(status))
                half.rename(file)

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            _become_a_worker(order)
        files[pid] = Path(order["status"])
        print(pid, flush=True)
        reap()


def _become_a_worker(order: Mapping[str, Any]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in ((0, nothing), (1, log), (2, log)):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = [str(WORKER), "worker"]
    runpy.run_path(str(WORKER), run_name="__main__")
    raise SystemExit(0)


if __name__ == "__main__":
    main()
