"""The grace period of a guest: which setting decides it, how a request sets it, how far it is."""
