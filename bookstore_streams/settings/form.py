"""What texts in settings must look like: URLs, addresses, names.

Owns only the look; refuses to resolve, connect or open anything.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

KAFKA = "kafka://host:port[;host:port...]"
HTTP = "http[s]://host[:port][/path] without user and password"
AMQP = "amqp[s]://[user:password@]host[:port][/vhost]"
SERVICE_BUS = "Endpoint=sb://...;SharedAccessKeyName=...;SharedAccessKey=..."

KAFKA_PORT = 9092


def servers(url: str) -> tuple[str, ...]:
    """The brokers of a `kafka://` URL as `host:port`, in order; empty when it is malformed."""
    if not url.startswith("kafka://"):
        return ()
    found = []
    for address in url.split(";"):
        netloc = address.removeprefix("kafka://")
        parts = _split(f"//{netloc}")
        # A comma is how other clients part brokers; here it would end up in a host's name.
        if parts is None or parts.netloc != netloc or "@" in netloc or "," in netloc:
            return ()
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        found.append(f"{host}:{KAFKA_PORT if parts.port is None else parts.port}")
    return tuple(found)


def is_http_url(url: str) -> bool:
    """Whether it has the `HTTP` form; it is shown to people, so it may hold no credentials."""
    parts = _split(url)
    return (
        parts is not None
        and parts.scheme in ("http", "https")
        and not (parts.query or parts.fragment or "@" in parts.netloc)
    )


def is_amqp_url(url: str) -> bool:
    """Whether it has the `AMQP` form."""
    parts = _split(url)
    return parts is not None and parts.scheme in ("amqp", "amqps")


def is_service_bus_string(text: str) -> bool:
    """Whether it names an endpoint and a key, or a signature."""
    names = {part.partition("=")[0].strip() for part in text.split(";")}
    is_signed = {"SharedAccessKeyName", "SharedAccessKey"} <= names
    has_endpoint = re.search(r"(^|;)\s*Endpoint=sb://[^;/]", text) is not None
    return has_endpoint and (is_signed or "SharedAccessSignature" in names)


def without_password(url: str) -> str:
    """The URL as it may be shown: its password and all that follows a `?` are left out."""
    address = url.partition("?")[0]
    # Up to the last '@', because a password may hold one.
    return re.sub(r"//([^:@/]*):.*@", r"//\1:***@", address)


def _split(url: str) -> SplitResult | None:
    """The parts of a URL that has a host and, if any, a possible port; None for any other."""
    try:
        parts = urlsplit(url)
        # Reading .port raises for anything but 0 to 65535.
        is_address = bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:
        return None
    return parts if is_address else None
