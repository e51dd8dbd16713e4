"""The Keystone v3 face: one file per resource."""
