"""The async driver: asks the core what to do with each message, and carries the answer out."""
