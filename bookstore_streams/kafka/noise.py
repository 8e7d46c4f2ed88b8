"""Keeps out of the log what a client library warns of although nothing is wrong."""

from __future__ import annotations

import logging
import time

from aiokafka.errors import NotEnoughReplicasError

#: Of aiokafka, where it warns of a batch that it sends again.
LOGGER = "aiokafka.producer.sender"

# A batch that is refused for so long is refused for what the error says.
PATIENCE_S = 2.0
# Refusals further apart than this are not of the same batch.
GAP_S = 1.0
# Between two lines about the same partition while it lasts.
AGAIN_S = 10.0


class Refusals(logging.Filter):
    """Passes "not enough replicas" only while it lasts, and then now and then.

    Kafka 4 answers so, too, when a producer begins a transaction in a partition before the
    markers of its last one are written there: a few milliseconds later the batch is taken
    (KIP-890 has no other answer for older requests). Several lines per commit would hide the
    case in which replicas are missing indeed.
    """

    def __init__(self) -> None:
        super().__init__()
        # partition -> when the refusals began, when the last one came, when one was told last
        self._seen: dict[object, tuple[float, float, float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        arguments = record.args
        if not isinstance(arguments, tuple) or NotEnoughReplicasError not in arguments:
            return True
        now_s = time.monotonic()
        partition = arguments[0]
        since_s, last_s, told_s = self._seen.get(partition, (now_s, now_s, -AGAIN_S))
        if now_s - last_s > GAP_S:
            since_s, told_s = now_s, -AGAIN_S
        is_told = now_s - since_s >= PATIENCE_S and now_s - told_s >= AGAIN_S
        self._seen[partition] = (since_s, now_s, now_s if is_told else told_s)
        return is_told


def keep_out() -> None:
    """Filter the library's own logger; again and again makes no difference."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(known, Refusals) for known in logger.filters):
        logger.addFilter(Refusals())
