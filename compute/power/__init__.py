"""Which power state is true: the hypervisor's or the one on record."""
