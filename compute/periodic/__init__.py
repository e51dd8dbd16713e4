"""What is looked after from time to time."""
