"""Runs the provider as a process of its own, for tests that kill and for demos.

It owns the child from its first line to its exit code. It refuses to end any other process.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final

from bookstore_streams.testing.provider.control import ProviderControl

# Python with its imports on a busy machine; an idle one needs half a second.
_START_S: Final = 30.0
_STOP_S: Final = 10.0
_READY: Final = "listening on "


class ProviderProcess:
    """A running provider; as a context manager it is stopped at the end of the block.

    Attributes:
        pid: of the child.
        url: where it listens.
        control: steers it.
    """

    def __init__(self, child: subprocess.Popen[str], url: str) -> None:
        self._child = child
        self.pid = child.pid
        self.url = url
        self.control = ProviderControl(url)

    def stop(self) -> int:
        """Asks it to leave by SIGTERM, then as `wait`; may be called twice."""
        if self._child.poll() is None:
            self._child.terminate()
        return self.wait()

    def kill(self) -> int:
        """Ends it by SIGKILL, as a crash would; returns its exit code."""
        self._child.kill()
        return self.wait()

    def wait(self) -> int:
        """Waits for its end, kills it after 10 s; returns its exit code.

        A negative code is the signal that ended it.
        """
        try:
            return self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()
        finally:
            if self._child.stdout is not None:
                self._child.stdout.close()

    def __enter__(self) -> ProviderProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def start_provider_process(
    port: int = 0, *, host: str = "127.0.0.1", ledger_file: Path | None = None
) -> ProviderProcess:
    """Starts a provider and returns once it listens.

    Raises:
        RuntimeError: it ended instead, having said why on stderr, or said nothing for 30 s.
    """
    command = [sys.executable, "-m", "bookstore_streams.testing.provider"]
    command += ["--host", host, "--port", str(port)]
    if ledger_file is not None:
        command += ["--ledger", str(ledger_file)]
    child = subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    is_heard, _, _ = select.select([child.stdout], [], [], _START_S)
    line = child.stdout.readline() if is_heard else ""
    if not line.startswith(_READY):
        child.kill()
        code = child.wait()
        child.stdout.close()
        raise RuntimeError(f"the payment provider did not start (exit code {code}), see stderr")
    return ProviderProcess(child, line.removeprefix(_READY).strip())


def _environment() -> dict[str, str]:
    """Ours, with this very package found first, installed or not."""
    here = str(Path(__file__).resolve().parents[3])
    found = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([here, found] if found else [here])}
