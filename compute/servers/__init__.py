"""Servers from the API client's side: lookup, list, create, delete, and what a request refers to."""
