"""The power state: which side wins when hypervisor and record differ."""
