"""Measurements of bookstore_streams beside what it is to be compared with; nothing here ships."""
