"""The journal of a partition: what it does when the broker does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookstore_streams.errors import PublishUnconfirmedError
from bookstore_streams.kafka.journal import KafkaJournal
from bookstore_streams.ports import Batch
from bookstore_streams.settings import load
from bookstore_streams.testing import virtual_time


class SilentProducer:
    """Begins transactions, and is never heard of again."""

    async def begin_transaction(self) -> None:
        """Begin."""

    async def send_offsets_to_transaction(self, offsets: Any, group: str) -> None:
        """Send."""

    async def commit_transaction(self) -> None:
        """Wait for an answer that does not come."""
        await asyncio.Event().wait()


def test_a_commit_without_an_answer_is_given_up_after_the_transactions_timeout() -> None:
    """Or the partition would stand still for ever, without a word."""

    async def commit() -> float:
        settings = load([], {"BOOKSTORE_COMMIT_TIMEOUT_MS": "5000"})
        journal = KafkaJournal(settings, 3, {})
        await journal._producer.stop()
        journal._producer = SilentProducer()
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(PublishUnconfirmedError, match="partition 3: no answer within 5 s"):
            await journal.commit(Batch({}, [], {"orders": 1}), lambda step: None)
        return loop.time() - started

    assert virtual_time.run(commit()) == pytest.approx(5.0)
