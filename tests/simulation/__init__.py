"""The whole engine in one process on virtual time; every choice comes from a seed: see docs/simulation.md."""
