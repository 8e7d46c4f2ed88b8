"""The payment client's pure parts: the key it sends, the wait it reads, what it refuses to be."""

from __future__ import annotations

import string
from urllib.parse import unquote

import pytest

from bookstore_streams.errors import ConfigError
from bookstore_streams.providers.payment import PaymentProvider, idempotency_key, retry_after_ms

DAY_MS = 24 * 60 * 60 * 1000
# Mon, 30 Nov 2026 12:00:00 GMT
NOW_MS = 1_796_040_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("2", 2_000),
        (" 2 ", 2_000),
        ("0", 0),
        ("007", 7_000),
        ("86400", DAY_MS),
        ("86401", DAY_MS),
        ("9" * 5_000, DAY_MS),
        ("0" * 5_000 + "1", 1_000),
        ("Mon, 30 Nov 2026 12:00:05 GMT", 5_000),
        ("Mon, 30 Nov 2026 13:00:05 +0100", 5_000),
        ("Monday, 30-Nov-26 12:00:05 GMT", 5_000),
        ("Mon Nov 30 12:00:05 2026", 5_000),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0),
        ("Tue, 30 Nov 2027 12:00:00 GMT", DAY_MS),
    ],
)
def test_a_retry_after_becomes_milliseconds_from_now_within_a_day(value, expected):
    assert retry_after_ms(value, NOW_MS) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "soon",
        "-5",
        "1.5",
        "1e3",
        "²",
        "٣",
        "5 s",
        "Mon, 99 Nov 2026 12:00:05 GMT",
        "Mon, 30 Nov 2026 99:00:05 GMT",
        "Mon, 30 Nov 99999999999999999999 12:00:05 GMT",
        "Mon, 30 Nov 2026 12:00:05 +9999999999999",
        "\x00",
        "," * 5_000,
    ],
)
def test_a_retry_after_that_is_garbage_is_ignored(value):
    assert retry_after_ms(value, NOW_MS) is None


@pytest.mark.parametrize("order_id", ["4711", "order 4711", "a/b?c=d&e", "UTF-8''x", "a:charge"])
def test_a_plain_order_id_stands_in_the_key_unchanged(order_id):
    assert idempotency_key(order_id, "charge") == f"{order_id}:charge"
    assert idempotency_key(order_id, "refund") == f"{order_id}:refund"


def test_an_order_id_that_no_header_carries_is_percent_encoded():
    assert idempotency_key("bücher-1", "charge") == "b%C3%BCcher-1:charge"
    assert idempotency_key("本/1", "refund") == "%E6%9C%AC/1:refund"
    assert idempotency_key("a\r\nX: 1", "charge") == "a%0D%0AX:%201:charge"


def test_keys_are_headers_and_never_meet():
    ids = [
        *("é", "%C3%A9", "%25C3%25A9", " x", "x", "%20x", "\tx", "x\n", "x", "100%", "100%25"),
        *("\x7f", "\u2028", "\ud800", "😀", "a b", "a%20b", "e\u0301", *string.printable),
    ]
    keys = {order_id: idempotency_key(order_id, "charge") for order_id in ids}
    assert len(set(keys.values())) == len(keys)
    for order_id, key in keys.items():
        assert key.isascii()
        assert key.isprintable()
        assert key == key.strip()
        assert unquote(key, errors="surrogatepass") == f"{order_id}:charge"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8090",
        "ftp://host",
        "http://",
        "http://:80",
        "http://host:port",
        "http://[::1",
    ],
)
def test_a_url_that_is_none_is_refused_when_the_client_is_made(url):
    with pytest.raises(ConfigError, match="payment URL"):
        PaymentProvider(url, 1_000, 10)


def test_all_wrong_settings_are_named_at_once_and_no_secret_with_them():
    with pytest.raises(ConfigError) as caught:
        PaymentProvider("http://user:secret@host?query", 0, 0)
    assert len(caught.value.problems) == 3
    assert "secret" not in str(caught.value)
