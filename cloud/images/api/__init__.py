"""The Glance v2 face: one file per resource."""
