"""Moving a server between hosts of its cell."""
