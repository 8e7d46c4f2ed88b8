"""Typed settings: read once at start, checked together, never changed afterwards.

Later sources win: code default, `config/default.toml`, `config/<BOOKSTORE_PROFILE>.toml`,
environment `BOOKSTORE_<SECTION>_<NAME>`. Every problem in any of them leaves in one
`ConfigError`, before anything is started. Nothing here opens what a setting names (no
certificate, no data directory, no connection) or reads the environment at import.
"""

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
from bookstore_streams.settings.catalogue import Setting, Settings, catalogue
from bookstore_streams.settings.source import ENV_PROFILE, ENV_ROOT, app_root, load, read

__all__ = [
    "ENV_PROFILE",
    "ENV_ROOT",
    "AppSettings",
    "BrokerSettings",
    "CommitSettings",
    "ConsumerSettings",
    "DataSettings",
    "EngineSettings",
    "InboxSettings",
    "LogSettings",
    "PaymentSettings",
    "RabbitmqSettings",
    "ServicebusSettings",
    "Setting",
    "Settings",
    "ShutdownSettings",
    "StoreSettings",
    "TopicsSettings",
    "WebSettings",
    "app_root",
    "catalogue",
    "load",
    "read",
]
