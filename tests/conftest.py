"""Fixtures for every test: brokers as real processes, and the size of the chaos tests.

A broker is started once per session and shared, so a test takes topic and group names from
`unique_name`. A test that stops, kills or pauses its broker takes one of its own with
`start_broker`.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from bookstore_streams.testing.brokers import (
    BROKERS,
    Broker,
    BrokerUnavailableError,
    EmbeddedBroker,
    KafkaBroker,
)

ChaosSize = Literal["small", "full"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos-size",
        choices=["small", "full"],
        default="small",
        help="small: what CI has time for; full: the size that the guarantees are shown with",
    )
    parser.addoption(
        "--kills",
        type=int,
        help="how often the storm of the chaos tests kills a worker, whatever the size",
    )


@pytest.fixture(scope="session")
def chaos_size(pytestconfig: pytest.Config) -> ChaosSize:
    size: ChaosSize = pytestconfig.getoption("--chaos-size")
    return size


def start_or_skip(broker: Broker) -> None:
    """Start it; where this machine lacks what it needs, skip on a laptop and fail in CI."""
    try:
        broker.start()
    except BrokerUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """The session's real Apache Kafka."""
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    start_or_skip(broker)
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The session's embedded broker."""
    broker = EmbeddedBroker(tmp_path_factory.mktemp("embedded"))
    start_or_skip(broker)
    yield broker
    broker.stop()


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each of the session's brokers in turn; the other one is not started for it."""
    started: Broker = request.getfixturevalue(request.param)
    return started


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[[str], Broker]]:
    """Start a broker of the test's own, by kind; it ends with the test."""
    with ExitStack() as stack:

        def start(kind: str) -> Broker:
            broker = BROKERS[kind](tmp_path / kind)
            start_or_skip(broker)
            stack.callback(broker.stop)
            return broker

        yield start


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Make a topic, group or app name that no other test on this broker uses."""
    test = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:60].strip("-")
    return lambda what: f"{what}-{test}-{uuid.uuid4().hex[:8]}"
