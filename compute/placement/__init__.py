"""What is free and what is taken: inventory, allocations, quota, server groups, aggregates."""
