"""Faust made crash-safe at its own extension points: transport, tables, store and commit path."""
