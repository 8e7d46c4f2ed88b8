"""What settings promise: later sources win, and all that is wrong is said at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from bookstore_streams.errors import ConfigError
from bookstore_streams.settings import Settings, app_root, catalogue, load, read
from bookstore_streams.settings.contradiction import ORDERS
from bookstore_streams.settings.declaration import Entry
from bookstore_streams.settings.value import convert

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config"
SECRET = "hunter2-that-must-never-be-shown"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a TOML file and returns its path."""

    def to_file(text: str, name: str = "default.toml") -> Path:
        path = tmp_path / "config" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


def problems(*files: Path, **env: str) -> tuple[str, ...]:
    """Every problem that these sources have; names in `env` go without their prefix."""
    with pytest.raises(ConfigError) as caught:
        load(files, {f"BOOKSTORE_{name}": value for name, value in env.items()})
    return caught.value.problems


def problem(*files: Path, **env: str) -> str:
    """The one problem that these sources have."""
    (only,) = problems(*files, **env)
    return only


def loaded(*files: Path, **env: str) -> Settings:
    return load(files, {f"BOOKSTORE_{name}": value for name, value in env.items()})


# --- declarations


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: str(entry.name))
def test_every_default_is_allowed_by_its_own_declaration(entry: Entry) -> None:
    as_text = "none" if entry.default is None else str(entry.default)
    assert convert(as_text, entry, is_env=True) == entry.default


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: str(entry.name))
def test_every_setting_says_what_it_means_and_does(entry: Entry) -> None:
    assert entry.spec.meaning.endswith(".")
    assert entry.spec.effect.endswith(".")
    assert (entry.spec.within is not None) == (entry.kind in (int, float))
    assert (entry.spec.form is None) == (entry.spec.fits is None)


def test_defaults_contradict_nothing() -> None:
    assert loaded() == Settings()


def test_names_and_environment_names_are_unique() -> None:
    entries = catalogue(["inventory", "notification"])
    assert len({entry.name for entry in entries}) == len(entries)
    assert len({entry.env for entry in entries}) == len(entries)


@pytest.mark.parametrize(
    "env",
    [
        "BOOKSTORE_BROKER_URL",
        "BOOKSTORE_BROKER_SESSION_TIMEOUT_MS",
        "BOOKSTORE_DATA_DIR",
        "BOOKSTORE_WEB_PORT",
        "BOOKSTORE_WEB_TOKEN",
        "BOOKSTORE_PAYMENT_URL",
        "BOOKSTORE_RABBITMQ_URL",
        "BOOKSTORE_SERVICEBUS_CONNECTION_STRING",
        "BOOKSTORE_SHUTDOWN_MS",
        "BOOKSTORE_BILLING_BACKOFF_MS_BASE",
        "BOOKSTORE_BILLING_BACKOFF_FACTOR",
        "BOOKSTORE_BILLING_BACKOFF_MS_MAX",
        "BOOKSTORE_BILLING_JITTER",
        "BOOKSTORE_BILLING_ATTEMPTS_MAX",
        "BOOKSTORE_BILLING_DEADLINE_MS",
        "BOOKSTORE_BILLING_IMMEDIATE_ATTEMPTS",
        "BOOKSTORE_BILLING_IMMEDIATE_TOTAL_MS_MAX",
    ],
)
def test_public_environment_names_exist(env: str) -> None:
    assert env in {entry.env for entry in catalogue()}


def test_every_setting_named_in_an_order_exists() -> None:
    names = {entry.name for entry in catalogue()}
    for order in ORDERS:
        assert {side.replace("*", "billing") for side in order[:2]} <= names


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        loaded().web.port = 1  # type: ignore[misc]


# --- order of sources


def test_later_sources_win_over_earlier_ones(write: Write) -> None:
    first = write("[web]\nport = 1001\nhost = 'one'\n[log]\nlevel = 'ERROR'")
    second = write("[web]\nport = 1002\nhost = 'two'", "second.toml")
    settings = loaded(first, second, WEB_PORT="1003")
    assert settings.web.port == 1003
    assert settings.web.host == "two"
    assert settings.log.level == "ERROR"
    assert settings.shutdown.ms == 10_000


def test_each_value_says_where_it_came_from(write: Write) -> None:
    path = write("[web]\nport = 1001\nhost = 'one'")
    shown = {line.name: line for line in loaded(path, WEB_PORT="1003").describe()}
    assert shown["web.port"] == ("web.port", 1003, "BOOKSTORE_WEB_PORT", "BOOKSTORE_WEB_PORT")
    assert shown["web.host"] == ("web.host", "one", str(path), "BOOKSTORE_WEB_HOST")
    assert shown["shutdown.ms"].source == "default"


def test_description_is_complete_ordered_and_fit_for_json(write: Write) -> None:
    described = loaded(write("[consumers.inventory]\n[consumers.a-b]")).describe()
    assert [line.name for line in described] == [
        entry.name for entry in catalogue(["inventory", "a-b"])
    ]
    assert described == loaded(write("[consumers.a-b]\n[consumers.inventory]")).describe()
    assert json.loads(json.dumps([line._asdict() for line in described]))


def test_variables_of_others_are_left_alone() -> None:
    assert load([], {"PATH": "/bin", "bookstore_web_port": "x", "BOOKSTORES": "x"}) == Settings()


# --- meaning of values


def test_environment_text_becomes_the_declared_type() -> None:
    settings = loaded(
        WEB_PORT="7000",
        BILLING_BACKOFF_FACTOR="3",
        DATA_DIR="/srv/books",
        LOG_LEVEL="debug",
        BILLING_JITTER="None",
    )
    assert settings.web.port == 7000
    assert isinstance(settings.consumers["billing"].backoff_factor, float)
    assert settings.data.dir == Path("/srv/books")
    assert settings.log.level == "DEBUG"
    assert settings.consumers["billing"].jitter == "none"


@pytest.mark.parametrize("off", ["", "none", "None"])
def test_what_is_optional_can_be_switched_off(off: str) -> None:
    assert loaded(BILLING_DEADLINE_MS=off).consumers["billing"].deadline_ms is None


def test_a_file_can_switch_off_as_well(write: Write) -> None:
    path = write("[consumers.billing]\ndeadline_ms = 'none'")
    assert loaded(path).consumers["billing"].deadline_ms is None


@pytest.mark.parametrize("no_value", ["0", "-1"])
def test_zero_and_minus_one_do_not_switch_off(no_value: str) -> None:
    assert "must be 1 to" in problem(BILLING_DEADLINE_MS=no_value)


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("kafka://a:1", ("a:1",)),
        ("kafka://a:1;b:2", ("a:1", "b:2")),
        ("kafka://a:1;kafka://b:2", ("a:1", "b:2")),
        ("kafka://a", ("a:9092",)),
        ("kafka://[::1]:19092", ("[::1]:19092",)),
    ],
)
def test_brokers_are_read_from_the_url(url: str, servers: tuple[str, ...]) -> None:
    assert loaded(BROKER_URL=url).broker.servers == servers


@pytest.mark.parametrize(
    "url",
    [
        "a:1",
        "http://a:1",
        "kafka://",
        "kafka://a:1;",
        "kafka://a:1,b:2",
        "kafka://a:x",
        "kafka://a:0",
        "kafka://a:70000",
        "kafka://a:1/topic",
        "kafka://a b:1",
        "kafka://[::1",
    ],
)
def test_a_malformed_broker_url_is_refused(url: str) -> None:
    said = problem(BROKER_URL=url)
    assert said.startswith(f"broker.url = {url!r} (from BOOKSTORE_BROKER_URL) must look like this:")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("APP_ID", "a/b"),
        ("APP_ID", ".."),
        ("WEB_HOST", "http://here"),
        ("WEB_TOKEN", "two words"),
        ("WEB_TOKEN", "caf\u00e9"),
        ("WEB_ADVERTISED_URL", "here:6066"),
        ("PAYMENT_URL", "ftp://pay"),
        ("PAYMENT_URL", "http://pay:port"),
        ("PAYMENT_URL", "http://pay?x=1"),
        ("RABBITMQ_URL", "http://rabbit"),
        ("SERVICEBUS_CONNECTION_STRING", "Endpoint=sb://bus"),
        ("SERVICEBUS_CONNECTION_STRING", "SharedAccessKeyName=a;SharedAccessKey=b"),
    ],
)
def test_text_must_have_the_declared_form(name: str, value: str) -> None:
    assert "must look like this" in problem(**{name: value})


@pytest.mark.parametrize("text", ["secret\n", "a\x00b", "\udcff"])
def test_control_characters_and_broken_text_are_refused(text: str) -> None:
    said = problem(BROKER_SASL_PASSWORD=text)
    assert "control characters" in said
    assert said.encode("utf-8")


def test_what_is_not_optional_cannot_be_empty() -> None:
    assert "must not be empty" in problem(DATA_DIR="")


@pytest.mark.parametrize("value", ["", "x", "1.5", "nan", "true"])
def test_a_whole_number_is_asked_for_in_the_environment(value: str) -> None:
    assert problem(WEB_PORT=value) == (
        f"web.port = {value!r} (from BOOKSTORE_WEB_PORT) must be a number: 1 to 65535"
    )


@pytest.mark.parametrize("value", ["'6066'", "true", "[1]", "1.5", "2024-01-01", "{a = 1}"])
def test_a_whole_number_is_asked_for_in_a_file(write: Write, value: str) -> None:
    path = write(f"[web]\nport = {value}")
    said = problem(path)
    assert said.startswith("web.port = ")
    assert f"(from {path}) must be a" in said


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0.5", "11", "1e999"])
def test_a_factor_must_be_finite_and_within_its_range(value: str) -> None:
    assert "must be 1 to 10 (factor)" in problem(BILLING_BACKOFF_FACTOR=value)


def test_text_is_asked_for_in_a_file(write: Write) -> None:
    assert "must be text" in problem(write("[data]\ndir = 5"))


def test_a_choice_outside_the_list_names_the_list() -> None:
    assert problem(BILLING_JITTER="some") == (
        "consumers.billing.jitter = 'some' (from BOOKSTORE_BILLING_JITTER)"
        " must be one of none, full, equal"
    )


# --- unknown names


def test_an_unknown_key_is_refused_with_the_likely_one(write: Write) -> None:
    path = write("[web]\nprot = 1")
    assert problem(path) == f"web.prot (from {path}) is unknown; did you mean port?"


def test_an_unknown_section_is_refused_with_the_likely_one(write: Write) -> None:
    path = write("[brokers]\nurl = 'x'")
    assert problem(path) == f"section [brokers] (from {path}) is unknown; did you mean broker?"


def test_an_unknown_environment_name_is_refused_with_the_likely_one() -> None:
    assert problem(BROKER_URI="x") == (
        "BOOKSTORE_BROKER_URI (from the environment) is unknown; did you mean BOOKSTORE_BROKER_URL?"
    )


def test_an_unnamed_consumer_in_the_environment_is_refused_with_what_to_do() -> None:
    assert "[consumers.inventory]" in problem(INVENTORY_ATTEMPTS_MAX="3")


@pytest.mark.parametrize("text", ["web = 5", "[[web]]\nport = 1", "consumers = 5"])
def test_a_section_must_be_a_section(write: Write, text: str) -> None:
    assert "must be a section" in problem(write(text))


def test_a_consumer_must_be_a_section(write: Write) -> None:
    assert "must be a section" in problem(write("[consumers]\nbilling = 5"))


# --- consumers


def test_a_consumer_named_in_a_file_has_environment_names(write: Write) -> None:
    path = write("[consumers.stock-keeping]\nattempts_max = 3")
    settings = loaded(path, STOCK_KEEPING_BACKOFF_MS_BASE="7")
    assert settings.consumers["stock-keeping"].attempts_max == 3
    assert settings.consumers["stock-keeping"].backoff_ms_base == 7
    assert settings.consumers["stock-keeping"].deadline_ms is None
    assert settings.consumers["billing"].deadline_ms == 1_800_000


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("Billing", "must be lower-case"),
        ("1st", "must be lower-case"),
        ("'a.b'", "must be lower-case"),
        ("web", "is the name of a section"),
        ("consumers", "is the name of a section"),
    ],
)
def test_a_bad_consumer_name_is_refused(write: Write, name: str, complaint: str) -> None:
    said = problem(write(f"[consumers.{name}]\nattempts_max = 3"))
    assert said.startswith(f"consumer name {name.strip(chr(39))!r}")
    assert complaint in said


def test_consumers_must_differ_in_the_environment(write: Write) -> None:
    assert "BOOKSTORE_A_B_*" in problem(write("[consumers.a-b]\n[consumers.a_b]"))


# --- secrets


def test_a_secret_in_a_file_is_refused_and_not_repeated(write: Write) -> None:
    said = problem(write(f"[web]\ntoken = '{SECRET}'"))
    assert "set BOOKSTORE_WEB_TOKEN instead" in said
    assert SECRET not in said


def test_secrets_are_never_shown() -> None:
    settings = loaded(
        WEB_TOKEN=SECRET,
        RABBITMQ_URL=f"amqps://user:p@ss/{SECRET}@rabbit:5671/books?password={SECRET}",
        SERVICEBUS_CONNECTION_STRING=(
            f"Endpoint=sb://bus/;SharedAccessKeyName=a;SharedAccessKey={SECRET}"
        ),
        BROKER_SECURITY_PROTOCOL="SASL_SSL",
        BROKER_SASL_MECHANISM="plain",
        BROKER_SASL_USERNAME="me",
        BROKER_SASL_PASSWORD=SECRET,
    )
    shown = {line.name: line.value for line in settings.describe()}
    assert shown["web.token"] == "***"
    assert shown["rabbitmq.url"] == "amqps://user:***@rabbit:5671/books"
    assert settings.web.token == SECRET
    assert SECRET not in str(shown) + repr(settings) + repr(settings.web)


def test_a_secret_that_is_not_set_is_shown_as_none() -> None:
    assert {line.value for line in Settings().describe() if "token" in line.name} == {None}


@pytest.mark.parametrize(
    "env",
    [
        {"RABBITMQ_URL": f"http://user:{SECRET}@rabbit"},
        {"SERVICEBUS_CONNECTION_STRING": SECRET},
        {"BROKER_URL": f"kafka://user:{SECRET}@kafka:9092"},
        {"PAYMENT_URL": f"https://user:{SECRET}@pay"},
        {"BROKER_SASL_PASSWORD": SECRET},
        {"WEB_TOKENS": SECRET},
        {"WEB_TOKEN": f"{SECRET}\n"},
    ],
)
def test_problems_show_no_secrets(env: dict[str, str]) -> None:
    assert SECRET not in problem(**env)


def test_a_misspelt_secret_in_a_file_is_not_repeated(write: Write) -> None:
    assert SECRET not in problem(write(f"[broker]\nsasl_pasword = '{SECRET}'"))


# --- combinations


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"BROKER_HEARTBEAT_INTERVAL_MS": "5001"}, "broker.session_timeout_ms"),
        ({"BROKER_SESSION_TIMEOUT_MS": "40001"}, "broker.request_timeout_ms"),
        ({"BROKER_MIN_INSYNC_REPLICAS": "2"}, "broker.replication_factor"),
        ({"TOPICS_MESSAGE_BYTES_MAX": "2097153"}, "topics.row_bytes_max"),
        ({"COMMIT_TIMEOUT_MS": "1000", "COMMIT_INTERVAL_MS": "1000"}, "commit.interval_ms"),
        ({"ENGINE_BACKLOG_MAX": "31"}, "engine.concurrency"),
        ({"STORE_WRITE_BUFFER_BYTES": "67108865"}, "store.cache_bytes"),
        ({"PAYMENT_TIMEOUT_MS": "30000"}, "consumers.billing.handler_timeout_ms"),
        ({"BILLING_BACKOFF_MS_MAX": "1999"}, "consumers.billing.backoff_ms_base"),
        ({"INBOX_RETENTION_MS": "300000"}, "consumers.billing.backoff_ms_max"),
        ({"BROKER_SASL_USERNAME": "me"}, "broker.security_protocol = PLAINTEXT (from default)"),
        ({"BROKER_SSL_CAFILE": "ca.pem"}, "broker.security_protocol = PLAINTEXT (from default)"),
        (
            {"BROKER_SECURITY_PROTOCOL": "SSL", "BROKER_SSL_KEYFILE": "key.pem"},
            "broker.ssl_certfile",
        ),
    ],
)
def test_what_cannot_hold_together_is_refused(env: dict[str, str], named: str) -> None:
    assert named in problem(**env)


def test_a_contradiction_names_both_values_and_where_they_came_from(write: Write) -> None:
    path = write("[broker]\nsession_timeout_ms = 6000")
    assert problem(path, BROKER_HEARTBEAT_INTERVAL_MS="3001") == (
        "2 times broker.heartbeat_interval_ms = 3001 (from BOOKSTORE_BROKER_HEARTBEAT_INTERVAL_MS)"
        f" must be at most broker.session_timeout_ms = 6000 (from {path}):"
        " one lost heartbeat must not end the session"
    )


def test_logging_in_needs_everything_it_needs() -> None:
    said = problems(BROKER_SECURITY_PROTOCOL="SASL_PLAINTEXT")
    assert [line.split()[0] for line in said] == [
        "broker.sasl_mechanism",
        "broker.sasl_username",
        "broker.sasl_password",
    ]


def test_tls_with_own_certificate_is_accepted() -> None:
    settings = loaded(
        BROKER_SECURITY_PROTOCOL="ssl",
        BROKER_SSL_CAFILE="ca.pem",
        BROKER_SSL_CERTFILE="me.pem",
        BROKER_SSL_KEYFILE="me.key",
    )
    assert settings.broker.ssl_keyfile == Path("me.key")


def test_every_consumer_is_compared(write: Write) -> None:
    path = write("[consumers.inventory]\nbackoff_ms_base = 300_001")
    assert "consumers.inventory.backoff_ms_max = 300000 (from default)" in problem(path)


# --- all at once


def test_all_problems_are_reported_together(write: Write) -> None:
    first = write("[web]\nprot = 1\nport = 'x'\n[brokr]\n[consumers.web]")
    second = write("no toml", "second.toml")
    said = problems(
        first,
        second,
        Path("missing.toml"),
        LOG_LEVEL="loud",
        SHUTDOWN="5",
        ENGINE_CONCURRENCY="1000",
        ENGINE_BACKLOG_MAX="10",
    )
    expected = [
        f"{second} is no TOML",
        "missing.toml cannot be read: No such file",
        "consumer name 'web'",
        "web.prot",
        "section [brokr]",
        "BOOKSTORE_SHUTDOWN (from the environment)",
        "web.port = 'x'",
        "log.level = 'loud'",
        "engine.concurrency = 1000",
    ]
    assert len(said) == len(expected)
    for sentence, start in zip(said, expected, strict=True):
        assert sentence.startswith(start)


def test_a_wrong_value_is_reported_although_a_later_source_is_right(write: Write) -> None:
    assert "must be 1 to 65535" in problem(write("[web]\nport = 0"), WEB_PORT="6066")


def test_a_refused_value_causes_no_second_problem() -> None:
    assert "must be a number" in problem(BROKER_SESSION_TIMEOUT_MS="x")


def test_a_long_wrong_value_is_cut(write: Write) -> None:
    assert len(problem(write(f"[web]\nport = '{'x' * 10_000}'"))) < 300


def test_deep_nesting_is_a_problem_and_no_crash(write: Write) -> None:
    assert "is no TOML" in problem(write(f"x = {'[' * 5_000}"))


# --- where the files are


def test_the_given_root_is_taken(tmp_path: Path) -> None:
    assert app_root({"BOOKSTORE_APP_ROOT": str(tmp_path)}) == tmp_path


def test_a_given_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="BOOKSTORE_APP_ROOT"):
        app_root({"BOOKSTORE_APP_ROOT": str(tmp_path / "nowhere")})


def test_the_current_directory_is_the_root_if_it_has_the_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("[web]\nport = 1001")
    monkeypatch.chdir(tmp_path)
    assert app_root({}) == tmp_path
    sources = {line.name: line.source for line in read({}).describe()}
    assert sources["web.port"] == str(Path("config/default.toml"))


def test_the_folder_beside_the_package_is_the_last_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app_root({}) == ROOT


def test_the_profile_wins_over_the_default_file(write: Write, tmp_path: Path) -> None:
    write("[web]\nport = 1001\nhost = 'one'")
    write("[web]\nport = 1002", "night.toml")
    env = {"BOOKSTORE_APP_ROOT": str(tmp_path), "BOOKSTORE_PROFILE": "night"}
    assert read(env).web.port == 1002
    assert read(env).web.host == "one"
    assert read(env | {"BOOKSTORE_PROFILE": ""}).web.port == 1001


@pytest.mark.parametrize("profile", ["nihgt", "../config/night", "night.toml"])
def test_a_profile_without_a_file_is_a_problem_among_others(
    write: Write, tmp_path: Path, profile: str
) -> None:
    write("[web]\nport = 0")
    write("", "night.toml")
    with pytest.raises(ConfigError) as caught:
        read({"BOOKSTORE_APP_ROOT": str(tmp_path), "BOOKSTORE_PROFILE": profile})
    missing, port = caught.value.problems
    assert missing.startswith(f"profile {profile!r} (from BOOKSTORE_PROFILE) has no file")
    assert "night" in missing
    assert port.startswith("web.port = 0")


def test_a_root_without_the_default_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read({"BOOKSTORE_APP_ROOT": str(tmp_path)})


# --- what is shipped


def test_the_default_file_says_what_the_code_does() -> None:
    assert loaded(CONFIG / "default.toml") == Settings()


@pytest.mark.parametrize("profile", sorted(path.stem for path in CONFIG.glob("*.toml")))
def test_every_shipped_profile_is_valid(profile: str) -> None:
    settings = read({"BOOKSTORE_APP_ROOT": str(ROOT), "BOOKSTORE_PROFILE": profile})
    assert any(source.endswith(f"{profile}.toml") for source in settings.sources.values())


def test_every_area_is_part_of_the_catalogue() -> None:
    areas = {entry.section.partition(".")[0] for entry in catalogue()}
    assert areas == {area.name for area in fields(Settings)} - {"sources"}


def generate(*arguments: str) -> int:
    script = ROOT / "scripts" / "generate-settings-doc"
    return subprocess.run([sys.executable, str(script), *arguments], check=False).returncode


def test_the_documentation_is_in_step_with_the_declarations() -> None:
    assert generate("--check") == 0


def test_documentation_out_of_step_is_noticed_and_left_as_it_is(tmp_path: Path) -> None:
    stale = tmp_path / "settings.md"
    assert generate("--check", "--file", str(stale)) == 1
    stale.write_text("old", encoding="utf-8")
    assert generate("--check", "--file", str(stale)) == 1
    assert stale.read_text(encoding="utf-8") == "old"
    assert generate("--file", str(stale)) == 0
    assert generate("--check", "--file", str(stale)) == 0
