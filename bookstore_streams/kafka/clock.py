"""The time of the machine."""

from __future__ import annotations

import time


class SystemClock:
    """Epoch ms of the system clock; see `ports.Clock`."""

    def now_ms(self) -> int:
        """Epoch ms now."""
        return time.time_ns() // 1_000_000
