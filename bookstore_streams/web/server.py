"""Faust's web server with our routes in it, and without Faust's own pages.

Those would stand at `/`, `/table/` and `/router/`, look rows up by a key in another form,
and answer wrongly. Pages that an app declares with `@app.page` are served as ever.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from aiohttp.web import AppRunner, Request, Response
from faust.types import AppT
from faust.web.drivers.aiohttp import Web

from . import health, parking, start, table
from .answer import errors_as_json
from .worker import Worker

View = Callable[[Worker, Request], Awaitable[Response]]

# A name is a piece of the path; a key may be anything, with its slashes as %2F, even empty.
NAME = "[^/]+"
KEY = "[^/]*"

ROUTES: Mapping[str, View] = {
    "/": start.start,
    "/health/live": health.live,
    "/health/ready": health.ready,
    "/parking/": parking.parked_keys,
    f"/parking/{{consumer:{NAME}}}/{{key:{KEY}}}/": parking.parked_one,
    "/tables/": table.tables,
    f"/tables/{{table:{NAME}}}/": table.table_rows,
    f"/tables/{{table:{NAME}}}/{{key:{KEY}}}/": table.table_row,
}

# Longest wait for views under way when the worker leaves, in seconds.
LEAVE_S_MAX = 1.0


class Server(Web):
    """The web server of a worker."""

    default_blueprints: ClassVar[Any] = ()
    production_blueprints: ClassVar[Any] = ()
    debug_blueprints: ClassVar[Any] = ()
    optional_blueprints: ClassVar[Any] = ()

    def __init__(self, app: AppT, worker: Worker, **kwargs: Any) -> None:
        """Make the server.

        Args:
            app: that the server belongs to.
            worker: what the views see.
            kwargs: what Faust's server takes.
        """
        super().__init__(app, **kwargs)
        self._runner = AppRunner(self.web_app, access_log=None, shutdown_timeout=LEAVE_S_MAX)
        self.web_app.middlewares.append(errors_as_json)
        for path in _with_and_without_slash(ROUTES):
            view = partial(ROUTES[path[0]], worker)
            self.web_app.router.add_get(path[1], view)


def _with_and_without_slash(paths: Iterable[str]) -> Iterable[tuple[str, str]]:
    """(path, path to serve) of each; the one people forget is served as well."""
    for path in paths:
        yield path, path
        if path != "/":
            yield path, path.rstrip("/") if path.endswith("/") else f"{path}/"
