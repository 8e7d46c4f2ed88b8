"""What the consumer group knows of its workers: who has which partitions, and where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .app import App


class Group:
    """The workers of an app, as the last assignment told every one of them."""

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def own_url(self) -> str:
        """Where other workers reach this one."""
        return str(self._app.conf.canonical_url)

    @property
    def partition_count(self) -> int:
        """How many partitions there are to share."""
        return self._app.settings.topics.partitions

    def members(self) -> Mapping[str, frozenset[int]]:
        """URL -> numbers of the engine's partitions given to it; empty before the first time.

        Of several workers that advertise one URL only one is in it.
        """
        given = self._app.router.external_topics_metadata()
        members = {
            url: self._numbers(
                (topic, number) for topic, numbers in topics.items() for number in numbers
            )
            for url, topics in given.items()
        }
        if members:
            # Whatever others advertise: what this worker has, it knows for certain.
            members[self.own_url] = self._numbers(self._app.assignor.assigned_actives())
        return members

    def _numbers(self, partitions: Iterable[tuple[str, int]]) -> frozenset[int]:
        topics = self._app.engine.topics
        return frozenset(number for topic, number in partitions if topic in topics)

    def is_rebalancing(self) -> bool:
        """Whether partitions are on their way from one worker to another."""
        return self._app.rebalancing

    def has_lease(self) -> bool:
        """Whether the group still counts this worker as alive."""
        return self._app.lease.holds()
