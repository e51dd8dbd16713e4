"""The fake driver: guests are rows in a state file, for development, tests and simulation."""
