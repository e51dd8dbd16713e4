"""Base classes and functions that several server actions share."""
