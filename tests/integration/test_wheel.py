"""What `pip install` brings: the package alone, whole, and with the licence."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The paths in a wheel built from a copy, so that the checkout gets no build folder."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "bookstore_streams", source / "bookstore_streams")
    for folder in ("agents", "tables", "config"):
        shutil.copytree(ROOT / folder, source / folder)
    for file in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*build, str(target), str(source)], check=True)
    (wheel,) = target.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_the_wheel_ships_the_package_and_no_part_of_the_deployment(wheel_names: list[str]) -> None:
    top = {Path(name).parts[0] for name in wheel_names}

    assert {name for name in top if not name.endswith(".dist-info")} == {"bookstore_streams"}


def test_the_wheel_misses_no_module_and_no_data_file(wheel_names: list[str]) -> None:
    package = ROOT / "bookstore_streams"
    here = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert here - set(wheel_names) == set()


def test_the_wheel_carries_the_licence(wheel_names: list[str]) -> None:
    assert [name for name in wheel_names if name.endswith("LICENSE")]
