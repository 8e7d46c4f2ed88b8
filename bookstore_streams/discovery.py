"""Finds `tables` and `agents`, the deployment beside the package, and imports all of both.

Strict where Faust is lenient: Faust turns an import error inside a scanned package into a
warning and starts without that agent.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType

from .errors import BookstoreError, DiscoveryError

#: Tables first: agents import them.
PACKAGES = ("tables", "agents")


def discover(root: Path) -> list[str]:
    """Import every module of both packages under `root`; their names, packages included.

    Repeatable: what is imported already stays as it is.

    Args:
        root: the folder that holds both.

    Raises:
        DiscoveryError: a package is missing, is another one of the same name, or one of its
            modules does not import.
    """
    if sys.path[:1] != [str(root)]:
        sys.path.insert(0, str(root))
    return [name for package in PACKAGES for name in _import_all(package, root)]


def _import_all(package: str, root: Path) -> list[str]:
    if not (root / package / "__init__.py").exists():
        raise DiscoveryError(
            f"{root} has no package {package!r}. Start where the shop's agents and tables are, "
            "or set BOOKSTORE_APP_ROOT to that folder."
        )
    module = _import(package)
    found = Path(module.__file__ or "").resolve().parent
    if found != (root / package).resolve():
        raise DiscoveryError(
            f"{package!r} is the package in {found}, not the one in {root}: another distribution "
            "of that name is installed, or was imported first."
        )
    names = [info.name for info in pkgutil.walk_packages(module.__path__, f"{package}.")]
    for name in names:
        _import(name)
    return [package, *names]


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BookstoreError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if "importlib" not in f.filename]
        where = f" ({own[-1].filename} line {own[-1].lineno})" if own else ""
        raise DiscoveryError(
            f"{name} does not import: {type(error).__name__}: {error}{where}"
        ) from error
