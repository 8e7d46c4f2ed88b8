"""`config show` and `config check`: the settings in force, and whether they can be."""

from __future__ import annotations

import click

from bookstore_streams.settings import Settings

from .output import json_option, print_json, print_table, wants_json


def config_group(settings: Settings) -> click.Group:
    """The commands.

    Args:
        settings: of this process, checked.
    """

    @click.group("config")
    def config() -> None:
        """Show and check the settings."""

    @config.command()
    @json_option
    def show(as_json: bool) -> None:
        """Show every setting, where its value comes from, and what would set it."""
        described = settings.describe()
        if wants_json(as_json):
            print_json([setting._asdict() for setting in described])
        else:
            print_table(("NAME", "VALUE", "SOURCE", "ENVIRONMENT"), described)

    @config.command()
    @json_option
    def check(as_json: bool) -> None:
        """Check the settings without starting anything.

        With wrong ones no command gets this far: each ends with all the problems.
        """
        if wants_json(as_json):
            print_json({"ok": True, "problems": []})
        else:
            click.echo("ok")

    return config
