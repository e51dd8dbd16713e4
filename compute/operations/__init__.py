"""The engine: an action is recorded, its steps are claimed, run, undone and recovered."""
