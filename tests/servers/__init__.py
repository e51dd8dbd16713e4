"""Servers that only tests and benchmarks start: PostgreSQL, RabbitMQ."""
