"""When it is too late for another attempt."""

from __future__ import annotations

from .policy import Policy


def deadline_at_ms(policy: Policy, since_ms: int | None) -> int | None:
    """Epoch ms after which a message is not attempted again; None when it has no deadline.

    Args:
        policy: of the consumer.
        since_ms: the time in the event that its deadline counts from; None when it has none.
    """
    if policy.deadline_ms is None or since_ms is None:
        return None
    return since_ms + policy.deadline_ms


def is_past(deadline_ms: int | None, at_ms: int) -> bool:
    """Whether something that happens at `at_ms` comes too late."""
    return deadline_ms is not None and at_ms > deadline_ms
