"""Admin pages: they show and ask; they never write a state."""

from compute.admin import hosts, offers, servers

__all__ = ["hosts", "offers", "servers"]
