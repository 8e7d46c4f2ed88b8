"""Bookstore orders as a stream: every message once, per key in order, retries without overtaking.

``bookstore_streams.app`` is the Faust app; it is made when it is first asked for, so that
importing any other part of the package builds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .kafka.app import App

    app: App

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "app":
        from .application import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
