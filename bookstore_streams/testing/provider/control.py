"""Steers a running provider from another process: the `/_script` API as plain calls.

It owns the requests of tests and demos. It refuses to be asynchronous (each call takes a
millisecond on this machine) and to send money calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

from bookstore_streams.testing.provider.script import Scope

_TIMEOUT_S: Final = 10.0
# A proxy from the environment would not find a provider on this machine.
_OPENER: Final = build_opener(ProxyHandler({}))


class ProviderControl:
    """The scripts and the ledger of the provider at a URL.

    Every method raises ValueError where the provider finds the request wrong, and OSError
    where there is none.

    Args:
        url: as the provider printed it.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def script(
        self,
        order_id: str,
        *steps: Mapping[str, Any],
        operation: Scope = "any",
        forever: bool = False,
    ) -> None:
        """Gives an order one step per call; afterwards it is well, or repeats the last one."""
        self.script_all(
            [{"order_id": order_id, "operation": operation, "steps": steps, "forever": forever}]
        )

    def script_all(self, orders: list[Mapping[str, Any]]) -> None:
        """Scripts many orders at once, all or none; each is an object as `/_script` takes it."""
        self._ask("POST", "/_script", orders)

    def default(self, *steps: Mapping[str, Any], forever: bool = False, delay_ms: int = 0) -> None:
        """Gives every order without a script these steps, and every call this latency."""
        source = {"steps": steps, "forever": forever, "delay_ms": delay_ms}
        self._ask("POST", "/_script/default", source)

    def random(self, **source: Any) -> None:
        """Draws failures for orders without a script: seed, fail_share, modes, attempts_max."""
        self._ask("POST", "/_script/random", source)

    def down(self, **source: Any) -> None:
        """Takes the whole provider down: from_ms, for_ms, and a step."""
        self._ask("POST", "/_script/down", source)

    def up(self) -> None:
        """Ends every down time, also those to come."""
        self._ask("DELETE", "/_script/down")

    def reset(self, *, ledger: bool = False) -> None:
        """Drops every script, and with `ledger` everything that was ever called and booked."""
        self._ask("DELETE", f"/_script?ledger={int(ledger)}")

    def ledger(self) -> dict[str, dict[str, Any]]:
        """The account of every order: `charged`, `charges`, `refunded`, `refunds`, ..."""
        orders: dict[str, dict[str, Any]] = self._ask("GET", "/_ledger")["orders"]
        return orders

    def account(self, order_id: str) -> dict[str, Any]:
        """The account of one order; of one never heard of, an empty account."""
        account: dict[str, Any] = self._ask("GET", f"/_ledger/{quote(order_id, safe='')}")
        return account

    def calls(self, since: int = 0) -> list[dict[str, Any]]:
        """Every call after that sequence number, in order of arrival."""
        calls: list[dict[str, Any]] = self._ask("GET", f"/_calls?since={since}")
        return calls

    def _ask(self, method: str, path: str, source: object = None) -> Any:
        body = None if source is None else json.dumps(source).encode()
        request = Request(
            self.url + path, body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                raise ValueError(f"{method} {path}: {error.read().decode()}") from error
