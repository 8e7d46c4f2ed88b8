"""Settings that are each possible, but not together.

Owns every bound between two settings; looks at nothing outside them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from bookstore_streams.settings.declaration import CONSUMER, Value


class Order(NamedTuple):
    """`times` x `left` must be less than `right`, or at most `right`, unless one is off.

    `consumers.*` in a name stands for each consumer.
    """

    left: str
    right: str
    why: str
    times: int = 1
    may_equal: bool = True

    @property
    def relation(self) -> str:
        """The relation in words, to stand between the two."""
        return "must be at most" if self.may_equal else "must be less than"

    @property
    def factor(self) -> str:
        """What stands before `left`, with a blank behind it; empty for once."""
        return "" if self.times == 1 else f"{self.times} times "


ORDERS = (
    Order(
        "broker.heartbeat_interval_ms",
        "broker.session_timeout_ms",
        "one lost heartbeat must not end the session",
        times=2,
    ),
    Order(
        "broker.session_timeout_ms",
        "broker.request_timeout_ms",
        "joining the group may take a whole session",
    ),
    Order(
        "broker.min_insync_replicas",
        "broker.replication_factor",
        "with fewer copies nothing could ever be written",
    ),
    Order(
        "topics.message_bytes_max",
        "topics.row_bytes_max",
        "a parked message or dead letter is larger than the message it holds",
        times=2,
    ),
    Order(
        "commit.interval_ms",
        "commit.timeout_ms",
        "a transaction must not time out before its commit is due",
        may_equal=False,
    ),
    Order(
        "engine.concurrency",
        "engine.backlog_max",
        "every running handler holds a message in memory",
    ),
    Order(
        "store.write_buffer_bytes",
        "store.cache_bytes",
        "write buffers count towards the cache",
    ),
    Order(
        "payment.timeout_ms",
        "consumers.billing.handler_timeout_ms",
        "the call must be able to time out before its handler is cancelled",
        may_equal=False,
    ),
    Order(
        "consumers.*.backoff_ms_base",
        "consumers.*.backoff_ms_max",
        "the first back-off would be longer than the longest",
    ),
    Order(
        "consumers.*.backoff_ms_max",
        "inbox.retention_ms",
        "an id must be remembered for longer than its message may wait",
        may_equal=False,
    ),
)


def contradictions(
    values: Mapping[str, Value], sources: Mapping[str, str], wrong: Collection[str]
) -> Iterator[str]:
    """One sentence for each two settings that cannot both hold, in a fixed order.

    Args:
        values: full name -> value, every setting.
        sources: full name -> where the value came from; absent for code defaults.
        wrong: full names of settings already refused; nothing more is said about them.
    """

    def cite(name: str) -> str:
        value = values[name]
        shown = "none" if value is None else str(value)
        return f"{name} = {shown} (from {sources.get(name, 'default')})"

    consumers = sorted({name.split(".")[1] for name in values if name.startswith(CONSUMER)})
    for order in ORDERS:
        for consumer in consumers if "*" in order.left + order.right else ("",):
            left = order.left.replace("*", consumer)
            right = order.right.replace("*", consumer)
            if left in wrong or right in wrong or _holds(order, values[left], values[right]):
                continue
            yield f"{order.factor}{cite(left)} {order.relation} {cite(right)}: {order.why}"
    if not any(name.startswith("broker.") for name in wrong):
        yield from _login_contradictions(values, cite)


def _holds(order: Order, left: Value, right: Value) -> bool:
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        return True
    needed = order.times * left
    return needed <= right if order.may_equal else needed < right


def _login_contradictions(values: Mapping[str, Value], cite: Callable[[str], str]) -> Iterator[str]:
    """What SASL and TLS need, and what has no meaning without them."""
    protocol = str(values["broker.security_protocol"])
    for name in ("broker.sasl_mechanism", "broker.sasl_username", "broker.sasl_password"):
        is_set = values[name] is not None
        if "SASL" in protocol and not is_set:
            yield f"{name} must be set: {cite('broker.security_protocol')} logs in with it"
        elif is_set and "SASL" not in protocol:
            # Not cited: it may be the password.
            yield f"{name} has no use: {cite('broker.security_protocol')} does not log in"
    for name in ("broker.ssl_cafile", "broker.ssl_certfile", "broker.ssl_keyfile"):
        if values[name] is not None and "SSL" not in protocol:
            yield f"{cite(name)} has no use: {cite('broker.security_protocol')} is no TLS"
    if values["broker.ssl_keyfile"] is not None and values["broker.ssl_certfile"] is None:
        yield f"{cite('broker.ssl_keyfile')} needs broker.ssl_certfile, whose key it is"
