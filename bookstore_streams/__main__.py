"""`python -m bookstore_streams <command>`: the same as `faust -A bookstore_streams <command>`."""

from __future__ import annotations

from bookstore_streams import app

if __name__ == "__main__":
    app.main()
