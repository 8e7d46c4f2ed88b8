"""How every Kafka client of the app connects: servers, TLS and SASL, in one place."""

from __future__ import annotations

import ssl
from typing import Any

import aiokafka.errors
from faust.auth import SASLCredentials, SSLCredentials
from faust.types.auth import CredentialsT

from bookstore_streams.errors import (
    AccessDeniedError,
    ConnectionLostError,
    LeaseLostError,
    PublishUnconfirmedError,
    TransportError,
)
from bookstore_streams.settings.area import BrokerSettings

_FENCED = (
    aiokafka.errors.ProducerFenced,
    aiokafka.errors.InvalidProducerEpoch,
    aiokafka.errors.InvalidProducerIdMapping,
)
_DENIED = (
    aiokafka.errors.TopicAuthorizationFailedError,
    aiokafka.errors.GroupAuthorizationFailedError,
    aiokafka.errors.ClusterAuthorizationFailedError,
    aiokafka.errors.TransactionalIdAuthorizationFailed,
    aiokafka.errors.AuthenticationFailedError,
)
_LOST = (
    aiokafka.errors.KafkaConnectionError,
    aiokafka.errors.NodeNotReadyError,
    aiokafka.errors.RequestTimedOutError,
    OSError,
)


def client_options(broker: BrokerSettings) -> dict[str, Any]:
    """Keyword arguments that every aiokafka client of ours is made with."""
    return {
        "bootstrap_servers": list(broker.servers),
        "request_timeout_ms": broker.request_timeout_ms,
        "security_protocol": broker.security_protocol,
        "ssl_context": _ssl_context(broker),
        "sasl_mechanism": broker.sasl_mechanism or "PLAIN",
        "sasl_plain_username": broker.sasl_username,
        "sasl_plain_password": broker.sasl_password,
    }


def credentials(broker: BrokerSettings) -> CredentialsT | None:
    """The same for Faust's own clients; None for a plain connection."""
    if broker.security_protocol == "PLAINTEXT":
        return None
    if broker.security_protocol == "SSL":
        return SSLCredentials(context=_ssl_context(broker))
    # Faust tells SASL_SSL from SASL_PLAINTEXT by whether there is a context.
    return SASLCredentials(
        mechanism=broker.sasl_mechanism or "PLAIN",
        username=broker.sasl_username,
        password=broker.sasl_password,
        ssl_context=_ssl_context(broker),
    )


def translated(error: Exception, doing: str) -> TransportError:
    """Our error for a client library's; raise it ``from`` the original.

    Args:
        error: of aiokafka or the operating system.
        doing: what was tried, for the message: "committing partition 3".
    """
    text = f"{doing}: {type(error).__name__}: {error}"
    if isinstance(error, TransportError):
        return error
    if isinstance(error, _FENCED):
        return LeaseLostError(f"{doing}: another worker has taken over ({type(error).__name__})")
    if isinstance(error, _DENIED):
        return AccessDeniedError(text)
    if isinstance(error, _LOST):
        return ConnectionLostError(text)
    if isinstance(error, aiokafka.errors.InvalidTimestampError):
        text += (
            ": the clock of this machine is too far from the broker's (Kafka allows an hour ahead, "
            "message.timestamp.after.max.ms). Set it right; nothing is lost meanwhile."
        )
    return PublishUnconfirmedError(text)


def _ssl_context(broker: BrokerSettings) -> ssl.SSLContext | None:
    if not broker.security_protocol.endswith("SSL"):
        return None
    context = ssl.create_default_context(
        cafile=None if broker.ssl_cafile is None else str(broker.ssl_cafile)
    )
    if broker.ssl_certfile is not None:
        context.load_cert_chain(
            str(broker.ssl_certfile),
            None if broker.ssl_keyfile is None else str(broker.ssl_keyfile),
        )
    return context
