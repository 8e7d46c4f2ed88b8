"""Clients of the outside systems that agents call; each translates its failures for us.

A client refuses to retry: it makes one call and says whether the failure is expected to
pass. What follows from that is the core's decision.
"""
