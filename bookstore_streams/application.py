"""The composition root: settings in, a complete app out. The only module that knows all others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from faust.cli import base as faust_cli
from faust.types.web import Web

from . import __version__
from .cli.commands import register
from .discovery import discover
from .errors import BookstoreError
from .kafka.app import App
from .kafka.client import KafkaClient
from .kafka.clock import SystemClock
from .kafka.group import Group
from .settings import app_root, read
from .web.server import Server
from .web.worker import Worker

T = TypeVar("T")


class Bookstore(App):
    """The app with its views."""

    def _new_web(self) -> Web:
        worker = Worker(
            app_id=self.settings.app.id,
            version=__version__,
            engine=self.engine,
            group=Group(self),
            clock=SystemClock(),
            tables=lambda: {table.name: table for table in self.tables.transactional()},
            session=lambda: self.http_client,
        )
        return Server(self, worker)


def create(env: Mapping[str, str]) -> App:
    """Build the app from files and environment; its agents and tables come with discovery.

    Args:
        env: environment variables.

    Raises:
        ConfigError: every wrong setting in one message.
    """
    settings = read(env)
    root = app_root(env)
    app = Bookstore(
        settings,
        autodiscover=lambda: _told(discover, root),
        origin="bookstore_streams.application",
    )
    register(faust_cli.cli, settings, KafkaClient(settings.broker, app.changelogs))
    return app


def _told(call: Callable[..., T], *args: Any) -> T:
    """An error that a person can act on, as the command line shows it: one message, status 1."""
    try:
        return call(*args)
    except BookstoreError as error:
        raise click.ClickException(str(error)) from error


app: App = _told(create, os.environ)
