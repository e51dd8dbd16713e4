"""The libvirt driver: KVM and QEMU guests. Only this package imports `libvirt`."""
