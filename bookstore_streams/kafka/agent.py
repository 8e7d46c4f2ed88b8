"""A consumer as a Faust agent: listed by `faust agents`, subscribed, run by the engine."""

from __future__ import annotations

from typing import Any, cast

from faust.agents import Agent
from faust.types import TopicT

from bookstore_streams.engine.consumer import Consumer


class ConsumerAgent(Agent):
    """An agent whose function handles one message: ``async def handle(event, context)``.

    There is no stream and no actor: retries, parking and lanes need one call per message,
    which ``async for`` cannot give.
    """

    def __init__(self, fun: Any, *, consumer: Consumer, **kwargs: Any) -> None:
        super().__init__(fun, **kwargs)
        self.consumer = consumer

    async def on_start(self) -> None:
        """Subscribe to the topics; the engine calls the function."""
        self.app.topics.add(cast(TopicT, self.channel))

    async def on_stop(self) -> None:
        """Nothing to stop."""
