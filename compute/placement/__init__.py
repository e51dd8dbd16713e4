"""Capacity and limits: inventory, allocations, quota, server groups, aggregates."""
