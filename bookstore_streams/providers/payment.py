"""The client of the payment provider: one HTTP call, and what its answer means.

It owns the wire (URL, `Idempotency-Key`, timeout, number of connections) and the translation
of every answer into "done", `TransientError` or `PermanentError`. It refuses to retry, to
follow redirects, and to look into the body of a success.
"""

from __future__ import annotations

import asyncio
import json
import re
import string
import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, Literal
from urllib.parse import quote, urlsplit

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from bookstore_streams.errors import ConfigError, PermanentError, TransientError

Operation = Literal["charge", "refund"]

_PATHS: Final[dict[Operation, str]] = {"charge": "/charges", "refund": "/refunds"}

# Beside 5xx, the statuses by which an HTTP server says "later".
_STATUSES_TRANSIENT: Final = frozenset({408, 429})

_DAY_MS: Final = 24 * 60 * 60 * 1000
_BODY_SHOWN_CHARS_MAX: Final = 200
_ORDER_SHOWN_CHARS_MAX: Final = 80
# Enough to drain every sane answer, so that its connection is used again; a longer one is
# cut off and costs a connection, not memory.
_BODY_READ_BYTES_MAX: Final = 64 * 1024
# Servers commonly refuse a header line above 8 KiB by cutting the connection, which would
# read as a passing failure; such an order can never be charged, so it is said at once.
_KEY_CHARS_MAX: Final = 4096

# What a header value carries unchanged. The percent sign is missing because it introduces an
# escape, a blank because it is lost at the edges of a header value.
_SAFE: Final = string.ascii_letters + string.digits + string.punctuation.replace("%", "")


class _Body(aiohttp.BytesPayload):
    """A request's body; asks when it is written, for only then does the first byte leave.

    Between the decision to call and that moment lie the making of a connection and a turn of
    the loop: time enough for a process that is frozen there to lose its lease.

    Attributes:
        refusal: what `before_call` raised; aiohttp hides it in an error of its own.
    """

    def __init__(self, body: bytes, before_call: Callable[[], None] | None) -> None:
        super().__init__(body, content_type="application/json")
        self._before_call = before_call
        self.refusal: Exception | None = None

    async def write(self, writer: AbstractStreamWriter) -> None:
        self._ask()
        await super().write(writer)

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        self._ask()
        await super().write_with_length(writer, content_length)

    def _ask(self) -> None:
        if self._before_call is None:
            return
        try:
            self._before_call()
        except Exception as error:
            self.refusal = error
            raise


class PaymentProvider:
    """Charges and refunds orders at the payment provider, each call at most once on the wire.

    The session is opened by the first call, on the loop that runs it. Calls may run
    concurrently; a call above the number of connections waits for its turn, and that wait
    counts neither as an attempt nor towards the timeout.

    Args:
        url: base of the provider, `http(s)://host[:port][/path]`.
        timeout_ms: longest time from connecting to the last byte of the answer, above 0.
        connections_max: most calls on the wire at the same time, at least 1.

    Raises:
        ConfigError: `url` is not of that shape, or a bound is below 1.
    """

    def __init__(self, url: str, timeout_ms: int, connections_max: int) -> None:
        self._base = url.rstrip("/")
        self._at, self._path = _checked(url, timeout_ms, connections_max)
        self._timeout_ms = timeout_ms
        self._connections_max = connections_max
        # Turns are handed out here and not by the connector, so that the wait for one does not
        # count towards the timeout.
        self._turns = asyncio.Semaphore(connections_max)
        self._session: aiohttp.ClientSession | None = None

    async def charge(
        self,
        order_id: str,
        amount: str,
        currency: str,
        *,
        before_call: Callable[[], None] | None = None,
    ) -> None:
        """Returns once the order is charged; repeating it under the same order charges once.

        Args:
            order_id: any text that is not empty.
            amount: decimal in major units, e.g. `12.50`, sent as it is.
            currency: ISO 4217 code, sent as it is.
            before_call: runs immediately before the request; what it raises stops the call
                and passes through unchanged.

        Raises:
            TransientError: 408, 429, 5xx, no answer in time, no connection, a broken one, or
                an answer that is no HTTP. `retry_after_ms` is what the provider asked for.
                The charge may have happened all the same.
            PermanentError: any other status; the message holds it and the body's beginning.
        """
        await self._call("charge", order_id, amount, currency, before_call)

    async def refund(
        self,
        order_id: str,
        amount: str,
        currency: str,
        *,
        before_call: Callable[[], None] | None = None,
    ) -> None:
        """Returns once the order is refunded; arguments and errors are those of `charge`."""
        await self._call("refund", order_id, amount, currency, before_call)

    async def close(self) -> None:
        """Closes the connections; calls in flight fail as transient. May be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _call(
        self,
        operation: Operation,
        order_id: str,
        amount: str,
        currency: str,
        before_call: Callable[[], None] | None,
    ) -> None:
        call = f"POST {self._path}{_PATHS[operation]} for order {_shown_order(order_id)}"
        key = idempotency_key(order_id, operation)
        if len(key) > _KEY_CHARS_MAX:
            raise PermanentError(
                f"{call} was not sent: its Idempotency-Key has {len(key)} characters,"
                f" more than {_KEY_CHARS_MAX}"
            )
        document = {"order_id": order_id, "amount": amount, "currency": currency}
        body = _Body(json.dumps(document).encode(), before_call)
        async with self._turns:
            await self._send(call, self._base + _PATHS[operation], key, body)

    async def _send(self, call: str, url: str, key: str, body: _Body) -> None:
        """Makes the one request, and turns whatever comes of it into our errors."""
        try:
            async with self._opened().post(
                url,
                data=body,
                headers={"Idempotency-Key": key},
                allow_redirects=False,
            ) as answer:
                text = await _beginning(answer)
        except TimeoutError as error:
            raise TransientError(
                f"payment provider at {self._at} did not answer {call} within {self._timeout_ms} ms"
            ) from error
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise TransientError(
                f"payment provider at {self._at} cannot be reached: {call} was not sent"
                f" ({_cause(error)})"
            ) from error
        except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
            # Its text quotes what came over the wire, so only its name is shown.
            raise TransientError(
                f"payment provider at {self._at} gave {call} an answer that cannot be read"
                f" ({type(error).__name__})"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            if body.refusal is not None:
                raise body.refusal from None
            raise TransientError(
                f"payment provider at {self._at} broke the connection during {call}"
                f" ({_cause(error)})"
            ) from error
        _judge(call, answer.status, answer.headers.get("Retry-After"), text)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections_max),
                timeout=aiohttp.ClientTimeout(total=self._timeout_ms / 1000),
                cookie_jar=aiohttp.DummyCookieJar(),
                # No compressed answers: a small one could unfold into much memory.
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
        return self._session


def idempotency_key(order_id: str, operation: Operation) -> str:
    """The `Idempotency-Key` of an order's operation: the same for each repetition.

    It is `<order_id>:charge` or `<order_id>:refund`. Where a header cannot carry that (other
    than printable ASCII, a blank at the front) it is percent-encoded as UTF-8. A literal
    percent sign is encoded, too, so that two orders never share a key.
    """
    key = f"{order_id}:{operation}"
    # The key ends in the operation, so a blank can only be lost at the front.
    if key.isascii() and key.isprintable() and "%" not in key and not key.startswith(" "):
        return key
    return quote(key, safe=_SAFE, errors="surrogatepass")


def retry_after_ms(value: str | None, now_ms: int) -> int | None:
    """The wait that a `Retry-After` header asks for, in ms from now, between 0 and a day.

    None where the header is absent or is neither whole seconds nor an HTTP date. A date in
    the past is 0.

    Source: RFC 9110 section 10.2.3.
    """
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch("[0-9]+", text):
        # Six digits of seconds are more than a day already; thousands would not even parse.
        digits = text.lstrip("0")
        return _DAY_MS if len(digits) > 6 else min(int(digits or "0") * 1000, _DAY_MS)
    try:
        date = parsedate_to_datetime(text)
        due_ms = int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    return min(max(due_ms - now_ms, 0), _DAY_MS)


def _judge(call: str, status: int, retry_after: str | None, body: str) -> None:
    """Returns for a success, else raises the error that the status stands for."""
    if 200 <= status < 300:
        return
    answered = f"payment provider answered {status} to {call}"
    if status in _STATUSES_TRANSIENT or 500 <= status < 600:
        wait_ms = retry_after_ms(retry_after, time.time_ns() // 1_000_000)
        asked = "" if wait_ms is None else f", retry after {wait_ms / 1000:g} s"
        raise TransientError(answered + asked, wait_ms)
    if 300 <= status < 400:
        answered += ", a redirect, which is not followed (is the payment URL right?)"
    shown = _one_line(body, _BODY_SHOWN_CHARS_MAX)
    raise PermanentError(f"{answered}: {shown}" if shown else answered)


async def _beginning(answer: aiohttp.ClientResponse) -> str:
    """Reads the body to its end, or to a bound; leaves the connection reusable at its end.

    The body of a success is read as well: an answer that breaks off proves nothing.
    """
    body = bytearray()
    while len(body) < _BODY_READ_BYTES_MAX:
        chunk = await answer.content.read(_BODY_READ_BYTES_MAX - len(body))
        if not chunk:
            break
        body += chunk
    return body.decode("utf-8", errors="replace")


def _checked(url: str, timeout_ms: int, connections_max: int) -> tuple[str, str]:
    """Returns host and port, and path, as messages name them: a URL may hold a password."""
    problems = []
    host, port, path = None, None, ""
    try:
        parts = urlsplit(url)
        host, port, path = parts.hostname, parts.port, parts.path.rstrip("/")
        is_base = parts.scheme in ("http", "https") and not parts.query and not parts.fragment
    except ValueError:
        is_base = False
    if not host or not is_base:
        problems.append("the payment URL must look like http://host:port, without query")
    if timeout_ms < 1:
        problems.append(f"the payment timeout must be at least 1 ms, not {timeout_ms}")
    if connections_max < 1:
        problems.append(f"payment connections must be at least 1, not {connections_max}")
    if problems:
        raise ConfigError(*problems)
    return f"{host}:{port}" if port else str(host), path


def _shown_order(order_id: str) -> str:
    return _one_line(order_id, _ORDER_SHOWN_CHARS_MAX)


def _cause(error: BaseException) -> str:
    """The innermost plain reason, e.g. `Connection refused`."""
    inner = getattr(error, "os_error", error)
    text = getattr(inner, "strerror", None) or str(inner) or type(error).__name__
    return _one_line(str(text), _BODY_SHOWN_CHARS_MAX)


def _one_line(text: str, chars_max: int) -> str:
    """At most that many characters, without any that would break a log line."""
    flat = "".join(char if char.isprintable() else " " for char in text[: chars_max + 1])
    return flat.strip() if len(flat) <= chars_max else flat[: chars_max - 3].rstrip() + "..."
