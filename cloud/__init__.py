"""The project: settings, URLs, logs and errors, and the identity and image services."""

__version__ = "0.1.0"  # of all of Stillwater; the only place that names it
