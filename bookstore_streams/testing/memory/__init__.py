"""A broker and workers in this process: the real engine runs on them, and anything can go wrong.

For tests that want to see every interleaving and every fault, on a virtual clock if they
like (`testing.virtual_time`). Nothing here imports a test framework.
"""

from .backend import MemoryBackend, MemoryJournal, changelog
from .broker import MemoryBroker, MemoryRecord, partition_of
from .fault import Faults, Hold
from .store import MemoryDisk, MemoryStore
from .worker import MemoryWorker, until

__all__ = [
    "Faults",
    "Hold",
    "MemoryBackend",
    "MemoryBroker",
    "MemoryDisk",
    "MemoryJournal",
    "MemoryRecord",
    "MemoryStore",
    "MemoryWorker",
    "changelog",
    "partition_of",
    "until",
]
