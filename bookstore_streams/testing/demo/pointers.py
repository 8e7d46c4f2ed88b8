"""Where to look next: addresses to open and commands to paste, for what runs or for later."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from .stage import Stage


def while_it_runs(stage: Stage) -> list[str]:
    """Lines about a stage that is left running."""
    provider = stage.provider.url
    return [
        "It all goes on running until you press Ctrl-C, and the timeline goes on below.",
        "In a browser, or with curl:",
        f"  {stage.web_url}/                  what runs, and what it has done",
        f"  {stage.web_url}/parking/          keys that wait, and until when",
        f"  {stage.web_url}/tables/payments/  what became of each order",
        f"  {provider}/_ledger           what the payment provider booked",
        "In another terminal, paste this:",
        f"  cd {shlex.quote(stage.env['BOOKSTORE_APP_ROOT'])}",
        *_activate(Path(stage.env["BOOKSTORE_APP_ROOT"])),
        *(f"  export {name}={shlex.quote(value)}" for name, value in exported(stage).items()),
        "then an order of your own, which the provider turns down until it is told otherwise:",
        f"  curl -s {provider}/_script \\",
        """    -d '{"order_id": "mine", "steps": [{"status": 503}], "forever": true}'""",
        "  faust -A bookstore_streams orders place --order-id mine \\",
        "    --customer me --currency EUR --line book-1:1:9.99",
        "  faust -A bookstore_streams parked list",
        f"""  curl -s {provider}/_script -d '{{"order_id": "mine"}}'""",
        "and a second worker, which takes over half of the partitions:",
        "  faust -A bookstore_streams worker",
    ]


def for_later() -> list[str]:
    """Lines about what else there is, once nothing runs any more."""
    return [
        "Next:",
        "  scripts/demo --keep          leaves it running, for orders of your own",
        "  scripts/demo --broker kafka  the same on Apache Kafka (needs Java and Maven)",
        "  agents/billing.py            all that charging and refunding took to write",
        "  config/demo.toml             the waits and attempts that you have just seen",
    ]


def exported(stage: Stage) -> dict[str, str]:
    """The environment in which commands, and further workers, belong to this stage's app."""
    env = dict(stage.env) | {
        "BOOKSTORE_DATA_DIR": str(stage.folder / "second-worker"),
        "BOOKSTORE_WEB_PORT": str(stage.spare_port),
    }
    del env["BOOKSTORE_APP_ROOT"]  # the commands begin with a cd to it
    return env


def _activate(root: Path) -> list[str]:
    if sys.prefix == sys.base_prefix:
        return []
    script = Path(sys.prefix) / "bin" / "activate"
    if script.is_relative_to(root):
        script = script.relative_to(root)
    return [f"  source {shlex.quote(str(script))}"]
