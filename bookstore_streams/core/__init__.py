"""The functional core: pure functions of state, event and the time given in.

Nothing in here knows Faust, a broker, a file, a clock or an event loop.
"""
