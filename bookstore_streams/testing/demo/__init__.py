"""The demo: a bookstore on this machine, a story of orders, and a judgement of what became of it.

`scripts/demo` (`python -m bookstore_streams.testing.demo`) starts a broker, a payment provider
and a worker as the separate processes they are, and from then on only does what any program
could do from outside: place orders, read topics, ask the provider and the worker's web server.
"""
