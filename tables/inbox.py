"""What became of each message: the row that makes its effects happen once.

Key: `<consumer>/<message id>`. Row: `outcome` (applied, parked, dead-lettered), `at_ms`,
`key`, and where it was read: `topic`, `partition`, `offset`. Rows expire; a duplicate that
comes later than that is handled again.
"""

from bookstore_streams import app
from bookstore_streams.core.envelope import inbox_id
from bookstore_streams.core.inbox import inbox_key, split_inbox_key


def _row_key(text: str) -> bytes:
    consumer, _, message_id = text.partition("/")
    return inbox_key(consumer, inbox_id(message_id))


inbox = app.Table(
    "inbox",
    help="What became of each message.",
    rows_expire_after_ms=app.settings.inbox.retention_ms,
    row_key=_row_key,
    key_prefix=lambda text: text.replace("/", "\0", 1).encode(),
    key_text=lambda raw: "/".join(split_inbox_key(raw)),
)
