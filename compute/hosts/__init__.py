"""Hosts as operators see them: services, drains, fenced hosts, shutdowns of whole hosts."""
