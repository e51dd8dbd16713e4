"""Server actions, one file each. `compute.operations.registry` finds them."""
