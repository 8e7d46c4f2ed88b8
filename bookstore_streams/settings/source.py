"""Where settings come from: the app root, its TOML files, and the environment.

Owns the order of the sources and the collecting of problems; refuses unknown names.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bookstore_streams.errors import ConfigError
from bookstore_streams.settings.area import ConsumerSettings
from bookstore_streams.settings.catalogue import BUILT_IN, SECTIONS, Settings, catalogue
from bookstore_streams.settings.contradiction import contradictions
from bookstore_streams.settings.declaration import CONSUMER, ENV_PREFIX, Entry, Value
from bookstore_streams.settings.value import convert, quoted

# These two say where the settings are, so they cannot be settings themselves.
ENV_ROOT = "BOOKSTORE_APP_ROOT"
ENV_PROFILE = "BOOKSTORE_PROFILE"

_CONSUMER_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def read(env: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process, from the app root's files and the environment.

    Args:
        env: the environment, looked at when called.

    Raises:
        ConfigError: there is no app root; or anything is wrong in any source, all of it together.
    """
    config = app_root(env) / "config"
    if config.is_relative_to(Path.cwd()):
        # People read it as the source of values; here the short name says as much.
        config = config.relative_to(Path.cwd())
    files = [config / "default.toml"]
    problems = []
    profile = env.get(ENV_PROFILE, "")
    if profile.lower() not in ("", "none"):
        # Chosen from what is there, so that no name can lead outside of the folder.
        profiles = sorted(path.stem for path in config.glob("*.toml"))
        if profile in profiles:
            files.append(config / f"{profile}.toml")
        else:
            found = ", ".join(profiles) or "none"
            problems.append(
                f"profile {profile!r} (from {ENV_PROFILE}) has no file in {config}: found {found}"
            )
    return _load(files, env, problems)


def load(files: Sequence[Path], env: Mapping[str, str]) -> Settings:
    """The settings that these files and this environment give; later ones win.

    Args:
        files: TOML files, the weakest first; each must exist.
        env: the environment, which wins over every file.

    Raises:
        ConfigError: anything is wrong in any of them, all of it together.
    """
    return _load(files, env, [])


def app_root(env: Mapping[str, str]) -> Path:
    """The absolute folder that holds this deployment's `config`, `agents` and `tables`.

    It is BOOKSTORE_APP_ROOT, else the current directory, else the folder beside the package;
    the last two only where they hold config/default.toml.

    Raises:
        ConfigError: BOOKSTORE_APP_ROOT is no folder, or neither of the others will do.
    """
    if given := env.get(ENV_ROOT):
        root = Path(given).absolute()
        if not root.is_dir():
            raise ConfigError(f"{ENV_ROOT} = {given!r} (from the environment) is no folder")
        return root
    candidates = (Path.cwd(), Path(__file__).resolve().parents[2])
    for root in candidates:
        if (root / "config" / "default.toml").is_file():
            return root
    looked = " or ".join(str(root) for root in candidates)
    raise ConfigError(
        f"found no config/default.toml in {looked}: start in the folder that holds config,"
        f" agents and tables, or name it in {ENV_ROOT}"
    )


class _Given(NamedTuple):
    """A setting as some source gives it, unchecked."""

    entry: Entry
    raw: object
    source: str


def _load(files: Sequence[Path], env: Mapping[str, str], problems: list[str]) -> Settings:
    documents = [(str(path), _document(path, problems)) for path in files]
    consumers = _consumer_names(documents, problems)
    entries = catalogue(consumers)
    values = {entry.name: entry.default for entry in entries}
    sources: dict[str, str] = {}
    wrong: set[str] = set()
    for entry, raw, source in (
        *_given_by_files(documents, entries, consumers, problems),
        *_given_by_env(env, entries, problems),
    ):
        try:
            values[entry.name] = convert(raw, entry, is_env=source == entry.env)
            sources[entry.name] = source
        except ValueError as complaint:
            wrong.add(entry.name)
            problems.append(f"{entry.name} = {quoted(raw, entry)} (from {source}) {complaint}")
    problems += contradictions(values, sources, wrong)
    if problems:
        raise ConfigError(*problems)
    return _settings(entries, values, sources)


def _settings(
    entries: Iterable[Entry], values: Mapping[str, Value], sources: Mapping[str, str]
) -> Settings:
    sections: dict[str, dict[str, Any]] = {}
    for entry in entries:
        sections.setdefault(entry.section, {})[entry.key] = values[entry.name]
    consumers = {
        section.removeprefix(CONSUMER): ConsumerSettings(**policy)
        for section, policy in sections.items()
        if section.startswith(CONSUMER)
    }
    defaults = Settings()
    return Settings(
        **{name: replace(getattr(defaults, name), **sections[name]) for name in SECTIONS},
        consumers=MappingProxyType(consumers),
        sources=MappingProxyType(sources),
    )


def _document(path: Path, problems: list[str]) -> dict[str, Any]:
    """The TOML in a file; empty, and a problem more, when there is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{path} cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        problems.append(f"{path} is no TOML: {error}")
    return {}


def _consumer_names(documents: Sequence[tuple[str, Any]], problems: list[str]) -> set[str]:
    """The consumers named in files, without those that must not be named so."""
    names: set[str] = set()
    by_env = {name.upper(): name for name in BUILT_IN}
    for source, document in documents:
        tables = document.get("consumers")
        for name in tables if isinstance(tables, dict) else ():
            in_env = name.replace("-", "_").upper()
            if not _CONSUMER_NAME.fullmatch(name):
                problem = "must be lower-case letters, digits, '_' and '-', the first a letter"
            elif in_env.lower() in (*SECTIONS, "consumers"):
                problem = f"is the name of a section: {ENV_PREFIX}{in_env}_* would mean both"
            elif by_env.setdefault(in_env, name) != name:
                problem = f"shares {ENV_PREFIX}{in_env}_* with {by_env[in_env]!r}: rename one"
            else:
                names.add(name)
                continue
            problems.append(f"consumer name {name!r} (from {source}) {problem}")
    return names


def _given_by_files(
    documents: Sequence[tuple[str, Any]],
    entries: Sequence[Entry],
    consumers: set[str],
    problems: list[str],
) -> Iterator[_Given]:
    known: dict[str, dict[str, Entry]] = {"consumers": {}}
    for entry in entries:
        known.setdefault(entry.section, {})[entry.key] = entry
    for source, document in documents:
        for section, table in _sections(document, consumers):
            if section not in known:
                hint = _did_you_mean(section, known)
                problems.append(f"section [{section}] (from {source}) is unknown{hint}")
            elif not isinstance(table, dict):
                problems.append(f"{section} (from {source}) must be a section: [{section}]")
            else:
                for key, raw in table.items():
                    if key in known[section]:
                        yield _Given(known[section][key], raw, source)
                    else:
                        # Its value is not shown: it may be a secret under a misspelt name.
                        hint = _did_you_mean(key, known[section])
                        problems.append(f"{section}.{key} (from {source}) is unknown{hint}")


def _sections(document: Mapping[str, Any], consumers: set[str]) -> Iterator[tuple[str, Any]]:
    """The sections of a document, each well-named consumer being one of its own."""
    for section, table in document.items():
        if section == "consumers" and isinstance(table, dict):
            yield from ((CONSUMER + name, table[name]) for name in table if name in consumers)
        else:
            yield section, table


def _given_by_env(
    env: Mapping[str, str], entries: Sequence[Entry], problems: list[str]
) -> Iterator[_Given]:
    known = {entry.env: entry for entry in entries}
    for name in sorted(name for name in env if name.startswith(ENV_PREFIX)):
        if name in known:
            yield _Given(known[name], env[name], name)
        elif name not in (ENV_ROOT, ENV_PROFILE):
            # Its value is not shown, either.
            hint = _did_you_mean(name, (*known, ENV_ROOT, ENV_PROFILE))
            problems.append(f"{name} (from the environment) is unknown{hint}{_consumer_hint(name)}")


def _consumer_hint(env_name: str) -> str:
    """What to do if the name was meant for a consumer that no file names; else empty."""
    for policy in fields(ConsumerSettings):
        suffix = f"_{policy.name.upper()}"
        consumer = env_name.removeprefix(ENV_PREFIX).removesuffix(suffix).lower()
        if env_name.endswith(suffix) and _CONSUMER_NAME.fullmatch(consumer):
            return f"; a consumer {consumer!r} has to be named in a file: [consumers.{consumer}]"
    return ""


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
