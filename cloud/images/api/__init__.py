"""The Glance v2 API: one file per resource."""
