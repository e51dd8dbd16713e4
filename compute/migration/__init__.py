"""Moving a server between hosts."""
