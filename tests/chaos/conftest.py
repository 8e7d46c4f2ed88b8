"""The seed of the chaos tests, given or fresh in each run; and a broker behind proxies."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from bookstore_streams.testing.brokers import KafkaBroker
from tests.chaos.campaign import DONE
from tests.chaos.proxy import Link, Proxy
from tests.conftest import start_or_skip


@pytest.fixture
def seed() -> int:
    """What a run is drawn from; CHAOS_SEED repeats one. Every failure names it."""
    given = os.environ.get("CHAOS_SEED")
    return random.SystemRandom().randrange(1_000_000) if given is None else int(given)


@pytest.fixture
def start_proxied(
    tmp_path: Path,
) -> Iterator[Callable[..., tuple[KafkaBroker, list[Link]]]]:
    """Start a Kafka of the test's own with so many links, each a way to it for one worker."""
    with ExitStack() as stack:

        def start(
            links: int, properties: Mapping[str, str] | None = None
        ) -> tuple[KafkaBroker, list[Link]]:
            proxy = stack.enter_context(Proxy(links))
            broker = KafkaBroker(tmp_path / "kafka", properties=properties)
            for link in proxy.links:
                link.target = broker.add_door(link.port)
            start_or_skip(broker)
            stack.callback(broker.stop)
            return broker, proxy.links

        yield start


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what all campaigns of this run did, added up."""
    if DONE:
        told = ", ".join(f"{count} {what}" for what, count in sorted(DONE.items()))
        terminalreporter.write_line(f"chaos: {told}")
