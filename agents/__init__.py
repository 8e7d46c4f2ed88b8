"""The consumers of the bookstore, one a file."""
