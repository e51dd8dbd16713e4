"""From an accepted build request to a server in a cell."""
