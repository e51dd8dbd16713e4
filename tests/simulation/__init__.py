"""The whole engine in one process, on virtual time, with every choice from a seed: see docs/simulation.md."""
