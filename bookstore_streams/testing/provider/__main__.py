"""`python -m bookstore_streams.testing.provider`: the provider as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import errno
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bookstore_streams.testing.provider.server import running_provider


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bookstore_streams.testing.provider",
        description="A payment provider that fails as it is told (docs/payment_provider.md).",
    )
    parser.add_argument("--port", type=int, default=6070, help="0 takes a free one (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--ledger",
        type=Path,
        metavar="FILE",
        help="JSON lines that keep every call and booking over a restart",
    )
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        parser.error(f"--port must be from 0 to 65535, not {options.port}")
    try:
        asyncio.run(_serve(options.host, options.port, options.ledger))
    except (OSError, ValueError) as error:
        print(_why_not(error, options.host, options.port), file=sys.stderr)
        return 1
    return 0


def _why_not(error: OSError | ValueError, host: str, port: int) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.filename is not None:
        return f"cannot keep the ledger in {error.filename}: {error.strerror}"
    why = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        why = "it is in use; choose another with --port"
    return f"cannot listen on port {port} of {host}: {why}"


async def _serve(host: str, port: int, ledger_file: Path | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with running_provider(host, port, ledger_file) as provider:
        print(f"listening on {provider.url}", flush=True)
        await ended.wait()


if __name__ == "__main__":
    sys.exit(main())
