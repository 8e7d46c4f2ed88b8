"""`python -m bookstore_streams.testing.demo`: what scripts/demo runs."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bookstore_streams.errors import BookstoreError
from bookstore_streams.settings import app_root
from bookstore_streams.testing.brokers import BROKERS

from .play import play
from .pointers import for_later
from .stage import StageError, Telling, stage
from .view import View, view

_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo: 0 all went as it must, 1 it did not or could not start, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="Show what becomes of orders while payments fail."
    )
    parser.add_argument(
        "--broker",
        type=_broker,
        default="embedded",
        help="embedded (default) or kafka to start one, kafka://HOST:PORT for one that runs",
    )
    parser.add_argument("--keep", action="store_true", help="leave it running until Ctrl-C")
    parser.add_argument(
        "--json", action="store_true", dest="is_json", help="print JSON, one object a line"
    )
    options = parser.parse_args(arguments)
    _end_in_order_on_signals()
    # What goes wrong with Kafka is told by whoever asked for it.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    shown = view(is_json=options.is_json)
    folder = Path(tempfile.mkdtemp(prefix="bookstore-demo-"))
    status = 1
    try:
        status = _run(folder, options.broker, shown, keep=options.keep)
    except KeyboardInterrupt:
        status = _INTERRUPTED
        shown.end()
        print("Interrupted: all processes have ended.", file=sys.stderr)
    except (BookstoreError, StageError) as error:
        shown.end()
        print(f"scripts/demo: {error}", file=sys.stderr)
    finally:
        shown.end()
        if status == 1 and any(folder.iterdir()):
            print(f"Logs and data are left in {folder}.", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return status


def _run(folder: Path, broker: str, shown: View, *, keep: bool) -> int:
    telling = Telling(shown.step, shown.waiting)
    shown.step("folder", f"{folder} (data and logs, removed when all went well)")
    with stage(app_root(os.environ), folder, broker, telling) as running:
        shown.end()
        shown.say()
        try:
            is_well = asyncio.run(play(running, shown, keep=keep))
        finally:
            shown.end()
            shown.say()
            shown.waiting("ending all processes")
    shown.end()
    shown.say("All processes have ended.")
    if is_well and not keep:
        shown.say()
        for line in for_later():
            shown.say(line)
    return 0 if is_well else 1


def _end_in_order_on_signals() -> None:
    """Make SIGTERM, and a terminal that closes, the same as Ctrl-C."""
    # A shell without job control has its background processes ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # else it was started by nohup
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def _broker(text: str) -> str:
    if text in BROKERS or text.startswith("kafka://"):
        return text
    raise argparse.ArgumentTypeError(f"embedded, kafka, or kafka://HOST:PORT, not {text!r}")


if __name__ == "__main__":
    sys.exit(main())
