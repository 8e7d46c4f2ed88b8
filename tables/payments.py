"""The payment of each order.

Key: order id. Row: `status` (captured, refunded, failed), `amount`, `currency`,
`message_id` of the order it was made for, and `reason` where it failed.
"""

from bookstore_streams import app

payments = app.Table("payments", help="The payment of each order.")
