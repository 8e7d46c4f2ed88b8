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
from tests.chaos.proxy import Link, Proxied, Proxy
from tests.conftest import start_or_skip

LINKS = 3


@pytest.fixture
def seed() -> int:
    """What a run is drawn from; CHAOS_SEED repeats one. Every failure names it."""
    given = os.environ.get("CHAOS_SEED")
    return random.SystemRandom().randrange(1_000_000) if given is None else int(given)


@pytest.fixture(scope="session")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """The Kafka of all chaos tests that leave it alone."""
    with ExitStack() as stack:
        yield _start(stack, tmp_path_factory.mktemp("chaos") / "kafka", {})


@pytest.fixture
def calm_kafka(lasting: Proxied) -> KafkaBroker:
    """A Kafka that must not be killed or paused: other tests come after this one."""
    return lasting.broker


@pytest.fixture
def links(lasting: Proxied) -> list[Link]:
    """Links to it, as good as new."""
    for link in lasting.links:
        link.mend()
    return lasting.links


@pytest.fixture
def start_proxied(tmp_path: Path) -> Iterator[Callable[[Mapping[str, str]], Proxied]]:
    """Start a Kafka of the test's own behind links, with these properties."""
    with ExitStack() as stack:
        yield lambda properties: _start(stack, tmp_path / "kafka", properties)


def _start(stack: ExitStack, folder: Path, properties: Mapping[str, str]) -> Proxied:
    proxy = stack.enter_context(Proxy(LINKS))
    broker = KafkaBroker(folder, properties=properties)
    for link in proxy.links:
        link.target = broker.add_door(link.port)
    start_or_skip(broker)
    stack.callback(broker.stop)
    return Proxied(broker, proxy.links)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what all campaigns of this run did, added up."""
    if DONE:
        told = ", ".join(f"{count} {what}" for what, count in sorted(DONE.items()))
        terminalreporter.write_line(f"chaos: {told}")
