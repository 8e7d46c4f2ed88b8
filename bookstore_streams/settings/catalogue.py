"""All settings together, as values and as a list.

Owns which areas and built-in consumers there are; reads no source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import NamedTuple

from bookstore_streams.settings.area import (
    AppSettings,
    BrokerSettings,
    CommitSettings,
    ConsumerSettings,
    DataSettings,
    EngineSettings,
    InboxSettings,
    LogSettings,
    PaymentSettings,
    RabbitmqSettings,
    ServicebusSettings,
    ShutdownSettings,
    StoreSettings,
    TopicsSettings,
    WebSettings,
)
from bookstore_streams.settings.declaration import CONSUMER, Entry, entries
from bookstore_streams.settings.value import masked

# Consumers that are there without being named in any file.
BUILT_IN: Mapping[str, ConsumerSettings] = MappingProxyType(
    {"billing": ConsumerSettings(deadline_ms=1_800_000)}
)


class Setting(NamedTuple):
    """One setting in force, for people and `config show`.

    Attributes:
        name: full name, as in the files: `broker.url`, `consumers.billing.jitter`.
        value: as JSON can hold it; None is off; a secret is masked.
        source: `default`, the file's path as given, or the environment name.
        env: the environment name that sets it.
    """

    name: str
    value: str | int | float | None
    source: str
    env: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process; `Settings()` holds the code defaults.

    Attributes:
        consumers: consumer name -> what it does about failures; billing is always there.
        sources: full setting name -> where its value came from; absent for code defaults.
    """

    app: AppSettings = field(default_factory=AppSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    data: DataSettings = field(default_factory=DataSettings)
    web: WebSettings = field(default_factory=WebSettings)
    topics: TopicsSettings = field(default_factory=TopicsSettings)
    commit: CommitSettings = field(default_factory=CommitSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    inbox: InboxSettings = field(default_factory=InboxSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    payment: PaymentSettings = field(default_factory=PaymentSettings)
    shutdown: ShutdownSettings = field(default_factory=ShutdownSettings)
    log: LogSettings = field(default_factory=LogSettings)
    rabbitmq: RabbitmqSettings = field(default_factory=RabbitmqSettings)
    servicebus: ServicebusSettings = field(default_factory=ServicebusSettings)
    consumers: Mapping[str, ConsumerSettings] = field(default_factory=lambda: BUILT_IN)
    sources: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), repr=False, compare=False
    )

    def describe(self) -> list[Setting]:
        """Every setting in force, secrets masked, in the order of `catalogue`."""
        areas = {section: getattr(self, section) for section in SECTIONS}
        areas |= {CONSUMER + name: policy for name, policy in self.consumers.items()}
        return [
            Setting(
                name=entry.name,
                value=masked(getattr(areas[entry.section], entry.key), entry),
                source=self.sources.get(entry.name, "default"),
                env=entry.env,
            )
            for entry in catalogue(self.consumers)
        ]


SECTIONS = tuple(
    area.name for area in fields(Settings) if area.name not in ("consumers", "sources")
)


def catalogue(consumers: Iterable[str] = ()) -> tuple[Entry, ...]:
    """Every setting there is, always in the same order: by area, then by consumer's name.

    Args:
        consumers: names of consumers beside the built-in ones, in any order.
    """
    defaults = Settings()
    areas = [(section, getattr(defaults, section)) for section in SECTIONS]
    for name in sorted({*BUILT_IN, *consumers}):
        areas.append((CONSUMER + name, BUILT_IN.get(name, ConsumerSettings())))
    return tuple(entry for section, area in areas for entry in entries(section, area))
