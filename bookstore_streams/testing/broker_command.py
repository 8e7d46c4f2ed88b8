"""The command line behind ``scripts/brokers``: up, down and status of the brokers of brokers.py.

Owns its words, its defaults and its exit status, and refuses to know how a broker is run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bookstore_streams.testing.brokers import BROKERS, Broker, BrokerUnavailableError

# Where clients look when nobody tells them, and what the settings start from.
PORT_DEFAULT = 9092


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``scripts/brokers``: 0 done, 1 refused or failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="scripts/brokers", description="Start, stop and show the brokers for development."
    )
    parser.add_argument("verb", choices=["up", "down", "status"])
    parser.add_argument("kind", choices=sorted(BROKERS), nargs="?")
    parser.add_argument("--port", type=_port, help="where it listens on 127.0.0.1 (default 9092)")
    parser.add_argument(
        "--data-dir", type=Path, help="where its data stays (default .brokers/KIND)"
    )
    args = parser.parse_args(argv)
    kinds = [args.kind] if args.kind else ["embedded"] if args.verb == "up" else sorted(BROKERS)
    if args.data_dir and len(kinds) > 1:
        parser.error("--data-dir is the folder of one broker: say which, kafka or embedded")
    try:
        done = [
            _VERBS[args.verb](
                BROKERS[kind](args.data_dir or _checkout() / ".brokers" / kind, args.port)
            )
            for kind in kinds
        ]
    except BrokerUnavailableError as error:
        print(f"scripts/brokers: {error}", file=sys.stderr)
        return 1
    return 0 if any(done) else 1


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be from 1 to 65535, not {text}")
    return int(text)


def _up(broker: Broker) -> bool:
    if broker.pid is None:
        broker.port = broker.port or PORT_DEFAULT
        print(f"starting the {broker.kind} broker", file=sys.stderr, flush=True)
        broker.start()
    return _status(broker)


def _down(broker: Broker) -> bool:
    was_up = broker.pid is not None
    broker.stop()
    print(f"{broker.kind}: {'stopped' if was_up else 'was not up'}")
    return True


def _status(broker: Broker) -> bool:
    pid = broker.pid
    if pid is None:
        print(f"{broker.kind}: not up")
        return False
    print(f"{broker.kind}: {broker.url} (pid {pid}, data and log in {broker.data_dir})")
    return True


_VERBS = {"up": _up, "down": _down, "status": _status}


def _checkout() -> Path:
    root = Path(__file__).parents[2]
    return root if (root / "setup.cfg").exists() else Path.cwd()


if __name__ == "__main__":
    raise SystemExit(main())
