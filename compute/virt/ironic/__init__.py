"""Bare metal through Ironic: whole machines, which one host worker deploys, powers and gives back."""
