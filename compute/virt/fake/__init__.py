"""The fake driver: guests in a state file, for development, tests and simulation."""
