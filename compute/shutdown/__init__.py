"""A guest's grace period: who decides how long it is, how it is asked for, and how far it is."""
