"""Server actions, one module each; `compute.operations.registry` finds them."""
