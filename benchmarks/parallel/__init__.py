"""Messages that take time, over few and many keys: ours beside Confluent's Parallel Consumer."""
