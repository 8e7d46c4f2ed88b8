"""How many files this process may have open: a worker with many partitions needs many."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

# RocksDB keeps its files open, some 11 per partition when it is new, and each partition has two
# connections: 64 of them need 850, and more as they grow. Often 1,024 is what a process is given
# and the machine would allow many more.
FILES_MAX = 65_536
_FEW = 4_096


def raise_limit() -> None:
    """Take as many as the machine allows, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        allowed = soft
    else:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        except (OSError, ValueError):  # a sandbox may say no
            allowed = soft
    if resource.RLIM_INFINITY != allowed < _FEW:
        log.warning(
            "This process may open only %s files; a worker needs some 15 per partition, more as "
            "its tables grow. Raise the limit (ulimit -n).",
            allowed,
        )
