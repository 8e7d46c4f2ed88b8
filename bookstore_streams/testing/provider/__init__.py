"""A payment provider that fails as it is told, and a ledger that tells what it booked.

For tests and demos: in the loop of a test (`running_provider`), as a process of its own
(`start_provider_process`, or `python -m bookstore_streams.testing.provider`), steered from
anywhere by `ProviderControl`. It refuses nothing that a hostile network would do.
"""

from bookstore_streams.testing.provider.control import ProviderControl
from bookstore_streams.testing.provider.ledger import Account, Call
from bookstore_streams.testing.provider.process import ProviderProcess, start_provider_process
from bookstore_streams.testing.provider.server import Provider, running_provider

__all__ = [
    "Account",
    "Call",
    "Provider",
    "ProviderControl",
    "ProviderProcess",
    "running_provider",
    "start_provider_process",
]
