"""The messages of parked keys, one a row, in the order in which they are handled.

Key: `<consumer>/<key>/<sequence>`. Row: the source record as it was read.
"""

from bookstore_streams import app
from bookstore_streams.core.parking import message_key, split_message_key
from bookstore_streams.core.record import shown, unpack


def _row_key(text: str) -> bytes:
    consumer, _, rest = text.partition("/")
    key, _, sequence = rest.rpartition("/")
    return message_key(consumer, key, int(sequence))


def _key_prefix(text: str) -> bytes:
    # The length of the key comes before it, so only the consumer's part is told by a prefix.
    consumer, slash, _ = text.partition("/")
    return consumer.encode() + (b"\0" if slash else b"")


parked_messages = app.Table(
    "parked_messages",
    help="Messages that wait behind or at the head of a parked key.",
    row_key=_row_key,
    key_prefix=_key_prefix,
    key_text=lambda raw: "/".join(map(str, split_message_key(raw))),
    row_value=lambda raw: shown(unpack(raw)),
)
