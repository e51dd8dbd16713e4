"""Servers as API clients see them: find, list, create, refer to."""
