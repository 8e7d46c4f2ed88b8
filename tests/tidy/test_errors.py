"""errors.py holds every exception of the package and draws them truly."""

from __future__ import annotations

import ast
import builtins
import inspect
from typing import Any

from bookstore_streams import errors


def drawn_tree() -> dict[str, str | None]:
    """Name -> parent's name as drawn by indentation in the docstring; None at the far left."""
    assert errors.__doc__ is not None
    path: list[tuple[int, str]] = []
    drawn: dict[str, str | None] = {}
    for line in errors.__doc__.splitlines():
        name = line.split()[0] if line.strip() else ""
        if not line.startswith("    ") or not name.endswith("Error"):
            continue
        depth = len(line) - len(line.lstrip())
        path = [(other, above) for other, above in path if other < depth]
        drawn[name] = path[-1][1] if path else None
        path.append((depth, name))
    return drawn


def real_classes() -> dict[str, type[BaseException]]:
    return {
        name: found
        for name, found in inspect.getmembers(errors, inspect.isclass)
        if found.__module__ == errors.__name__ and issubclass(found, BaseException)
    }


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {
        name: found.__bases__[0].__name__ if found.__bases__[0] is not Exception else None
        for name, found in real_classes().items()
    }

    assert drawn_tree() == real


def test_other_parents_are_drawn_too() -> None:
    assert errors.__doc__ is not None
    for name, found in real_classes().items():
        for other in found.__bases__[1:]:
            assert f"{name} (also {other.__name__})" in errors.__doc__


def test_names_end_in_error_and_hide_no_builtin() -> None:
    for name in real_classes():
        assert name.endswith("Error")
        assert not hasattr(builtins, name)


def test_every_error_says_when_it_is_raised() -> None:
    assert [name for name, found in real_classes().items() if not found.__doc__] == []


def test_no_other_module_of_the_product_defines_an_exception(package_sources: list[Any]) -> None:
    """Save a private one that its module catches itself, and the testing kit's."""
    elsewhere = [
        f"{source.name}: {node.name}"
        for source in package_sources
        if source.name != "bookstore_streams/errors.py"
        and not source.name.startswith("bookstore_streams/testing/")
        for node in ast.walk(source.tree())
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)
    ]

    assert elsewhere == []
