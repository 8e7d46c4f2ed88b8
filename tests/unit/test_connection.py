"""What an error of a client library becomes, for the one who reads the log."""

from __future__ import annotations

import aiokafka.errors
import pytest

from bookstore_streams.errors import (
    AccessDeniedError,
    ConnectionLostError,
    LeaseLostError,
    PublishUnconfirmedError,
    TransportError,
)
from bookstore_streams.kafka.connection import translated

DOING = "committing partition 3"


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (aiokafka.errors.ProducerFenced(), LeaseLostError),
        (aiokafka.errors.TopicAuthorizationFailedError("orders"), AccessDeniedError),
        (aiokafka.errors.KafkaConnectionError(), ConnectionLostError),
        (ConnectionResetError("reset"), ConnectionLostError),
        (aiokafka.errors.InvalidTimestampError(), PublishUnconfirmedError),
        (RuntimeError("odd"), PublishUnconfirmedError),
    ],
)
def test_an_error_becomes_ours_and_tells_what_was_tried(
    error: Exception, ours: type[TransportError]
) -> None:
    found = translated(error, DOING)
    assert type(found) is ours
    assert str(found).startswith(f"{DOING}: ")


def test_a_wrong_clock_is_told_with_what_to_do() -> None:
    text = str(translated(aiokafka.errors.InvalidTimestampError(), DOING))
    assert "Set it right; nothing is lost meanwhile." in text


def test_an_error_of_ours_stays_as_it_is() -> None:
    known = ConnectionLostError("gone")
    assert translated(known, DOING) is known
