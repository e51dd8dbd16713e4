"""Bare metal through Ironic: one host worker deploys, powers and returns whole machines."""
