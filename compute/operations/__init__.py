"""The engine: it records actions, claims and runs their steps, compensates and recovers them."""
