"""The process of `faust worker`: it looks whether everything is there before it starts."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click
import faust
from click.core import ParameterSource

from bookstore_streams.errors import BookstoreError, ConfigError

from .files import raise_limit
from .noise import keep_out

if TYPE_CHECKING:
    from .app import App

GC_THRESHOLDS = (100_000, 50, 100)


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)


class Worker(faust.Worker):
    """Faust's worker; a start that cannot succeed ends with one sentence and exit status 1."""

    app: App

    def __init__(self, app: App, *args: Any, loglevel: str | int | None = None, **kwargs: Any):
        """Make the worker; its log level is the setting, unless the command line says another."""
        context = click.get_current_context(silent=True)
        given = context and context.get_parameter_source("loglevel")
        if loglevel is None or given is not ParameterSource.COMMANDLINE:
            loglevel = app.settings.log.level
        super().__init__(app, *args, loglevel=loglevel, **kwargs)

    def execute_from_commandline(self) -> NoReturn:
        """Prepare, then run until told to stop."""
        # Python prints a library's warnings where nothing is set up for logging, as until Faust
        # runs; what they tell stands in our own message.
        logging.getLogger("aiokafka").addHandler(logging.NullHandler())
        keep_out()
        raise_limit()
        # Faust handles signals once it runs; until then there is nothing to drain.
        signal.signal(signal.SIGTERM, _leave)
        try:
            self._check_port()
            self.loop.run_until_complete(self.app.prepare())
        except BookstoreError as error:
            print(f"Error: {error}", file=sys.stderr)
            raise SystemExit(1) from None
        # What is imported stays, so it is not looked at again; and thousands of messages in
        # flight are no garbage: at Python's own thresholds a third of the time goes into
        # looking at them.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        super().execute_from_commandline()

    def _check_port(self) -> None:
        conf = self.app.conf
        if not conf.web_enabled:
            return
        family = socket.AF_INET6 if ":" in conf.web_bind else socket.AF_INET
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((conf.web_bind, conf.web_port))
            except OSError as error:
                raise ConfigError(
                    f"The web server cannot listen on {conf.web_bind} port {conf.web_port} "
                    f"({error.strerror}). Set BOOKSTORE_WEB_PORT or BOOKSTORE_WEB_HOST."
                ) from error
