"""Periodic tasks of schedulers and conductors; `tasks/periodic.py` runs them."""
