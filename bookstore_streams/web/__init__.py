"""What a worker shows over HTTP: its health, the parking lot and the tables of all workers.

Reading changes nothing, and nothing here writes. Each view looks at the engine's committed
rows and asks the other workers for theirs.
"""
