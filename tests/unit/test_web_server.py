"""The server inside Faust: which pages it serves, and how it leaves. Pins what we lean on."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import aiohttp
import faust
import pytest

from bookstore_streams.engine.engine import Engine
from bookstore_streams.web import server
from bookstore_streams.web.server import Server
from bookstore_streams.web.worker import Worker
from tests.chaos.shop import free_port
from tests.unit.view_stand import FrozenClock, MemoryEngine, MemoryGroup


def made_server(port: int = 6066) -> Server:
    app = faust.App("pinned", web_bind="127.0.0.1", web_port=port, store="memory://")
    worker = Worker(
        app_id="pinned",
        version="1",
        engine=cast(Engine, MemoryEngine({})),
        group=MemoryGroup(),
        clock=FrozenClock(),
        tables=dict,
        session=lambda: app.http_client,
    )
    made = Server(app, worker)
    made.init_server()  # Faust calls it when the app is found, and again when the worker starts
    made.init_server()
    return made


def test_it_serves_our_pages_and_none_of_fausts() -> None:
    served = {resource.canonical for resource in made_server().web_app.router.resources()}

    assert served == {
        "/",
        "/health/live",
        "/health/live/",
        "/health/ready",
        "/health/ready/",
        "/parking",
        "/parking/",
        "/parking/{consumer}/{key}",
        "/parking/{consumer}/{key}/",
        "/tables",
        "/tables/",
        "/tables/{table}",
        "/tables/{table}/",
        "/tables/{table}/{key}",
        "/tables/{table}/{key}/",
    }


def test_it_leaves_although_a_view_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked = asyncio.Event()

    async def hang(worker: Worker, request: Any) -> Any:
        is_asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(server, "LEAVE_S_MAX", 0.1)
    monkeypatch.setattr(server, "ROUTES", {**server.ROUTES, "/hang": hang})

    async def story() -> None:
        port = free_port()
        made = made_server(port)
        await made.start_server()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            async with http.get("/health/live") as response:
                assert response.status == 200
            asking = asyncio.create_task(http.get("/hang"))
            await is_asked.wait()
            started = time.monotonic()
            await made.stop_server()
            assert time.monotonic() - started < 5
            with pytest.raises(aiohttp.ClientError):
                await asking

    asyncio.run(story())
