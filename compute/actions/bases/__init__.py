"""What several server actions share."""
