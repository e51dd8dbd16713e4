"""The one place that maps libvirt's error codes to the errors of the driver contract."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import libvirt

from compute.virt.base import (
    GuestInvalidState,
    GuestNotFound,
    HypervisorUnavailable,
    InsufficientResources,
    NotSupported,
    OperationTimedOut,
    VirtError,
)

KINDS: dict[int, type[VirtError]] = {
    libvirt.VIR_ERR_NO_DOMAIN: GuestNotFound,
    libvirt.VIR_ERR_INVALID_DOMAIN: GuestNotFound,
    libvirt.VIR_ERR_OPERATION_INVALID: GuestInvalidState,
    libvirt.VIR_ERR_NO_MEMORY: InsufficientResources,
    libvirt.VIR_ERR_RESOURCE_BUSY: InsufficientResources,
    libvirt.VIR_ERR_NO_CONNECT: HypervisorUnavailable,
    libvirt.VIR_ERR_INVALID_CONN: HypervisorUnavailable,
    libvirt.VIR_ERR_RPC: HypervisorUnavailable,
    libvirt.VIR_ERR_AUTH_FAILED: HypervisorUnavailable,
    libvirt.VIR_ERR_AUTH_UNAVAILABLE: HypervisorUnavailable,
    libvirt.VIR_ERR_OPERATION_TIMEOUT: OperationTimedOut,
    libvirt.VIR_ERR_AGENT_UNRESPONSIVE: OperationTimedOut,
    libvirt.VIR_ERR_NO_SUPPORT: NotSupported,
    libvirt.VIR_ERR_CONFIG_UNSUPPORTED: NotSupported,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED: NotSupported,
    libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED: NotSupported,
}
# A lost connection has no code of its own: it is a system or internal error of these domains.
TRANSPORT = frozenset({libvirt.VIR_FROM_RPC, libvirt.VIR_FROM_REMOTE})
TRANSPORT_CODES = frozenset({libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR})
SCARCE = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
TLS_TEXTS = re.compile(r"certificate|\bTLS\b", re.IGNORECASE)  # of libvirt, QEMU and GnuTLS; there is no code for it
TLS_ADVICE = "Check the files in /etc/pki of both hosts; manage.py tls_certificates makes and renews them (docs/tls.md)"
# QEMU prints these as it exits, and libvirt passes them on as an internal error.
SCARCE_TEXTS = ("cannot allocate memory", "cannot set up guest memory", "no space left on device")


def kind_of(error: libvirt.libvirtError) -> type[VirtError]:
    """Return the contract's error class; plain VirtError if there is no closer one."""
    code, text = error.get_error_code(), str(error).lower()
    if code in TRANSPORT_CODES:
        if error.get_error_domain() in TRANSPORT:
            return HypervisorUnavailable
        if error.get_int1() in SCARCE and code == libvirt.VIR_ERR_SYSTEM_ERROR:
            return InsufficientResources
    if any(scarce in text for scarce in SCARCE_TEXTS):
        return InsufficientResources
    return KINDS.get(code, VirtError)


@contextmanager
def translated() -> Iterator[None]:
    """Raise libvirt errors and OSErrors of the block as errors of the contract."""
    try:
        yield
    except libvirt.libvirtError as error:
        advice = f". {TLS_ADVICE}" if TLS_TEXTS.search(str(error)) else ""
        raise kind_of(error)(f"{error} (libvirt error {error.get_error_code()}){advice}") from error
    except OSError as error:
        if error.errno in SCARCE:
            raise InsufficientResources(str(error)) from error
        raise VirtError(str(error)) from error
