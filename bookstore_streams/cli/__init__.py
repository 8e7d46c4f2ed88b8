"""Commands for operators, as verbs of `faust -A bookstore_streams`.

Each prints for people, or with `--json` for programs; exits with 0 when done, 1 when refused
or failed, with one message on stderr, and 2 on wrong usage.
"""
