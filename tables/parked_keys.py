"""The parked keys: whose head failed for a passing reason and waits for its next attempt.

Key: `<consumer>/<key>`. Row: `state`, `due_ms`, `attempts`, `count`, `oldest_ms`, `cause`, and
`history`, the latest failed attempts as [at_ms, attempt, message id, cause].
"""

from bookstore_streams import app
from bookstore_streams.core.parking import parked_key, split_parked_key

parked_keys = app.Table(
    "parked_keys",
    help="Keys whose first message waits for a retry.",
    row_key=lambda text: parked_key(*text.split("/", 1)),
    key_prefix=lambda text: text.replace("/", "\0", 1).encode(),
    key_text=lambda raw: "/".join(split_parked_key(raw)),
)
