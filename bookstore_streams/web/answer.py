"""Answers: JSON always, errors included."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson
from aiohttp import web

from bookstore_streams.errors import BookstoreError

log = logging.getLogger(__name__)

JSON = "application/json"
# How soon somebody who was told 503 may ask again, in seconds.
RETRY_AFTER_S = 1

E = TypeVar("E", bound=web.HTTPException)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer(document: Any, status: int = 200) -> web.Response:
    """A JSON response; what is shown is of this moment, so nobody keeps it."""
    return web.Response(
        body=orjson.dumps(document),
        status=status,
        content_type=JSON,
        charset="utf-8",
        headers={"Cache-Control": "no-store"},
    )


def refusal(kind: type[E], message: str, **more: Any) -> E:
    """An HTTP error to raise, as `{"error": message, ...more}`."""
    body = orjson.dumps({"error": message, **more}).decode()
    error = kind(text=body, content_type=JSON)
    if isinstance(error, web.HTTPServiceUnavailable):
        error.headers["Retry-After"] = str(RETRY_AFTER_S)
    return error


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever goes wrong in a view leaves as a JSON object with an `error`."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.content_type == JSON or error.status < 400:
            raise
        document = answer({"error": f"{error.reason}: {request.path}"}, error.status)
        if isinstance(error, web.HTTPMethodNotAllowed):
            document.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
        return document
    except BookstoreError as error:
        # The store of a partition that is going away, most likely.
        raise refusal(web.HTTPServiceUnavailable, str(error)) from error
    except Exception:
        log.exception("The view of %s failed", request.path)
        return answer({"error": "The view failed; the worker's log says why."}, 500)
