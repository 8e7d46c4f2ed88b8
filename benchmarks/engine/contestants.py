"""Who takes part in a run, in the order of the result."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

WARM_UP = "plain-batches"
# Ratios are to these, taken within a round.
REFERENCES = ("stock-exactly-once", "stock-at-least-once", WARM_UP)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A worker program.

    Attributes:
        module: what `python -m` runs, under `benchmarks`.
        variant: the module's first argument.
        work: one line for the reader of the result.
        emits: whether it writes one event per message; if not, committed offsets are judged.
        arguments: further ones, behind those that tell it where to work.
    """

    module: str
    variant: str
    work: str
    emits: bool = True
    arguments: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The module's full name."""
        return f"benchmarks.{self.module}"

    @property
    def is_present(self) -> bool:
        """Whether its module is there; one that is not yet written is reported as absent."""
        return find_spec(self.path) is not None


_WORK = "decode, inbox check and row, one business row read and written, one event emitted"
_PLAIN = "plain aiokafka loop, one transaction per 2,000 messages at most"

CONTESTANTS = {
    "stock-exactly-once": Contestant(
        "engine.stock_faust",
        "exactly-once",
        f"stock Faust, exactly_once: {_WORK} (Faust sends the event outside the transaction and "
        "changes RocksDB before it)",
    ),
    "stock-at-least-once": Contestant(
        "engine.stock_faust", "at-least-once", f"stock Faust, at_least_once: {_WORK}"
    ),
    "stock-noop": Contestant(
        "engine.stock_faust",
        "noop",
        "stock Faust, at_least_once: an agent that does nothing",
        emits=False,
    ),
    WARM_UP: Contestant(
        "engine.plain_aiokafka", "batches", f"{_PLAIN}, hand-made batches: {_WORK}"
    ),
    "plain-futures": Contestant(
        "engine.plain_aiokafka", "futures", f"{_PLAIN}, a future per record: {_WORK}"
    ),
    "ours": Contestant("engine.ours", "ours", f"bookstore_streams: {_WORK}"),
}
