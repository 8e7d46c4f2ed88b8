"""The tables of the bookstore, one a file: what a row means, and nothing else."""
