"""Names of the tables that the engine itself writes; the deployment declares them."""

INBOX = "inbox"
PARKED_KEYS = "parked_keys"
PARKED_MESSAGES = "parked_messages"
