"""Compute hosts from the operator's side: services, drains, fenced hosts, shutdown and start of a host's guests."""
