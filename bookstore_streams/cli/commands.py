"""Puts our commands beside Faust's own."""

from __future__ import annotations

import click

from bookstore_streams.settings import Settings

from .broker import Broker
from .config import config_group
from .orders import orders_group
from .parked import parked_group


def register(group: click.Group, settings: Settings, broker: Broker) -> None:
    """Add the commands to a group; adding them again replaces them.

    Args:
        group: Faust's.
        settings: of this process.
        broker: that the commands read from and send to.
    """
    group.add_command(config_group(settings))
    group.add_command(orders_group(broker))
    group.add_command(parked_group(broker))
