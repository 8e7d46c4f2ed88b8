"""Who takes part in a run, in the order of the result."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

# All ratios are to this one.
REFERENCE = "stock-exactly-once"
WARM_UP = "plain-batches"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A worker program.

    Attributes:
        module: what `python -m` runs, under `benchmarks.engine`.
        variant: the module's first argument.
        work: one line for the reader of the result.
        emits: whether it writes one event per message; if not, committed offsets are judged.
    """

    module: str
    variant: str
    work: str
    emits: bool = True

    @property
    def path(self) -> str:
        """The module's full name."""
        return f"benchmarks.engine.{self.module}"

    @property
    def is_present(self) -> bool:
        """Whether its module is there; one that is not yet written is reported as absent."""
        return find_spec(self.path) is not None


_WORK = "decode, inbox check and row, one business row read and written, one event emitted"
_PLAIN = "plain aiokafka loop, one transaction per 2,000 messages at most"

CONTESTANTS = {
    REFERENCE: Contestant(
        "stock_faust",
        "exactly-once",
        f"stock Faust, exactly_once: {_WORK} (Faust sends the event outside the transaction and "
        "changes RocksDB before it)",
    ),
    "stock-at-least-once": Contestant(
        "stock_faust", "at-least-once", f"stock Faust, at_least_once: {_WORK}"
    ),
    "stock-noop": Contestant(
        "stock_faust", "noop", "stock Faust, at_least_once: an agent that does nothing", emits=False
    ),
    WARM_UP: Contestant("plain_aiokafka", "batches", f"{_PLAIN}, hand-made batches: {_WORK}"),
    "plain-futures": Contestant(
        "plain_aiokafka", "futures", f"{_PLAIN}, a future per record: {_WORK}"
    ),
    "ours": Contestant("ours", "ours", f"bookstore_streams: {_WORK}"),
}
