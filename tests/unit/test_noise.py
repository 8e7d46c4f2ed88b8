"""What a client library warns of for nothing stays out of the log, and the real thing gets in."""

from __future__ import annotations

import inspect
import logging
from types import SimpleNamespace

import pytest
from aiokafka.errors import NotEnoughReplicasError, RequestTimedOutError
from aiokafka.producer import sender
from aiokafka.structs import TopicPartition

from bookstore_streams.kafka import noise

HERE, THERE = TopicPartition("payments", 0), TopicPartition("payments", 1)


class Log:
    """A logger of aiokafka with the filter, and a clock that a test turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        self._filter = noise.Refusals()
        monkeypatch.setattr(noise, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def passes(self, partition: TopicPartition, error: type = NotEnoughReplicasError) -> bool:
        """Whether the warning of a batch that is sent again gets through."""
        text = "Got error produce response on topic-partition %s, retrying. Error: %s"
        arguments = (partition, error)
        record = logging.LogRecord(noise.LOGGER, logging.WARNING, "", 0, text, arguments, None)
        return self._filter.filter(record)

    def refusals(self, partition: TopicPartition, seconds: float, step_s: float = 0.01) -> int:
        """How many of those that come for so long get through."""
        told = 0
        for _ in range(round(seconds / step_s)):
            told += self.passes(partition)
            self.now_s += step_s
        return told


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


def test_refusals_at_the_begin_of_transactions_are_not_told(log: Log) -> None:
    told = 0
    for _ in range(100):
        told += log.refusals(HERE, 0.05)
        log.now_s += 1.5
    assert told == 0


def test_refusals_that_go_on_are_told_now_and_then(log: Log) -> None:
    assert log.refusals(HERE, 1.9) == 0
    assert log.refusals(HERE, 60) == 6


def test_partitions_are_told_of_one_by_one(log: Log) -> None:
    told = [0, 0]
    for _ in range(300):
        told[0] += log.passes(HERE)
        told[1] += log.passes(THERE)
        log.now_s += 0.01
    assert told == [1, 1]


def test_any_other_error_is_told_at_once(log: Log) -> None:
    assert log.passes(HERE, RequestTimedOutError)
    other = logging.LogRecord(noise.LOGGER, logging.WARNING, "", 0, "else", None, None)
    assert noise.Refusals().filter(other)


def test_the_filter_is_put_on_once_and_where_aiokafka_warns() -> None:
    assert sender.log.name == noise.LOGGER
    assert "topic-partition" in inspect.getsource(sender.SendProduceReqHandler)
    before = list(sender.log.filters)
    try:
        noise.keep_out()
        noise.keep_out()
        added = [known for known in sender.log.filters if known not in before]
        assert len(added) <= 1
        assert sum(isinstance(known, noise.Refusals) for known in sender.log.filters) == 1
    finally:
        for known in set(sender.log.filters) - set(before):
            sender.log.removeFilter(known)
