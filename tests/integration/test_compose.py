"""docker-compose.yml and Dockerfile: pinned, watched, and in step with the settings.

Nothing here needs a Docker engine; where a Docker client with Compose is found it reads the
file, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bookstore_streams import settings

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
PINNED = re.compile(r"^[^\s:@]+(/[^\s:@]+)*:[^\s:@]*\d+\.?\d*[^\s:@]*$")


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def named_volumes(service: dict[str, Any]) -> set[str]:
    sources = (mount.split(":")[0] for mount in service.get("volumes", []))
    return {source for source in sources if not source.startswith((".", "/"))}


def known_environment() -> set[str]:
    """Every name the settings read, the two that say where the settings are included."""
    described = settings.read({"BOOKSTORE_APP_ROOT": str(ROOT)}).describe()
    return {entry.env for entry in described} | {"BOOKSTORE_APP_ROOT", "BOOKSTORE_PROFILE"}


def compose_client() -> list[str] | None:
    for client in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(client[0]):
            run = subprocess.run([*client, "version"], capture_output=True)
            if run.returncode == 0:
                return client
    return None


def test_everything_that_the_bookstore_talks_to_is_there() -> None:
    assert {"kafka", "rabbitmq", "servicebus", "servicebus-sql", "provider", "worker"} <= set(
        services()
    )


def test_every_image_is_pinned() -> None:
    images = {name: service["image"] for name, service in services().items()}

    assert {name for name, image in images.items() if not PINNED.match(image)} == set()
    assert {name for name, image in images.items() if "latest" in image} == set()


def test_every_service_is_watched_by_a_health_check() -> None:
    """Its own, or that of a neighbour which says so, where the image can run nothing."""
    watched = {name for name, service in services().items() if service.get("healthcheck")}
    watched |= {services()[name].get("labels", {}).get("bookstore.watches") for name in watched}

    assert set(services()) - watched == set()


def test_whoever_waits_for_a_service_can_tell_that_it_is_healthy() -> None:
    for service in services().values():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services()[other]


def test_what_must_outlive_a_container_is_on_a_declared_volume() -> None:
    used = set().union(*(named_volumes(service) for service in services().values()))

    assert used == set(compose()["volumes"])
    for name in ("kafka", "rabbitmq", "servicebus-sql", "provider", "worker"):
        assert named_volumes(services()[name]), name


def test_every_port_is_open_to_this_machine_only() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]

    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    hosts = [port.split(":")[1] for port in ports]
    assert sorted(hosts) == sorted(set(hosts))


def test_every_environment_name_is_a_setting() -> None:
    used = {name for service in services().values() for name in service.get("environment", {})}
    used |= set(re.findall(r"\b(BOOKSTORE_\w+)=", DOCKERFILE.read_text()))
    ours = {name for name in used if name.startswith("BOOKSTORE_")}

    assert ours - known_environment() == set()
    assert "BOOKSTORE_BROKER_URL" in ours


def test_the_workers_environment_makes_valid_settings() -> None:
    environment = {
        name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value)
        for name, value in services()["worker"]["environment"].items()
    }

    read = settings.read(environment | {"BOOKSTORE_APP_ROOT": str(ROOT)})

    assert read.broker.url == "kafka://kafka:19092"
    assert read.web.token is None


def test_the_worker_has_longer_to_stop_than_it_needs() -> None:
    grace = re.fullmatch(r"(\d+)s", services()["worker"]["stop_grace_period"])

    assert grace is not None
    shutdown_ms = settings.read({"BOOKSTORE_APP_ROOT": str(ROOT)}).shutdown.ms
    assert int(grace[1]) * 1000 > shutdown_ms


def test_every_file_that_is_mounted_exists() -> None:
    mounts = [mount for service in services().values() for mount in service.get("volumes", [])]
    files = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]

    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_the_service_bus_emulators_file_is_json_with_its_one_namespace() -> None:
    loaded = json.loads((ROOT / "config" / "servicebus-emulator.json").read_text())

    assert [space["Name"] for space in loaded["UserConfig"]["Namespaces"]] == ["sbemulatorns"]


def test_the_image_is_pinned_and_its_processes_are_not_root() -> None:
    text = DOCKERFILE.read_text()
    images = re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)

    assert all(PINNED.match(image) for image in images), images
    assert re.findall(r"^USER (\S+)", text, flags=re.MULTILINE)[-1:] == ["bookstore"]
    assert 'CMD ["faust", "-A", "bookstore_streams", "worker"]' in text
    for folder in ("agents", "tables", "config"):
        assert f"COPY {folder} {folder}" in text


def test_compose_itself_accepts_the_file() -> None:
    client = compose_client()
    if client is None:
        pytest.skip("no Docker client with Compose here")

    run = subprocess.run(
        [*client, "--file", str(COMPOSE), "config", "--quiet"],
        cwd=ROOT,
        env=os.environ | {"COMPOSE_PROFILES": "servicebus"},
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stderr
