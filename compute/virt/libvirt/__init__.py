"""KVM and QEMU guests through libvirt. Nothing outside this folder imports `libvirt`."""
