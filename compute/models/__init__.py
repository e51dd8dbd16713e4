"""The records of compute: one file per record."""

from compute.models.action import HostNeed, InstanceAction, Step
from compute.models.flavor import Flavor, FlavorAccess
from compute.models.host import Allocation, ComputeNode, Service
from compute.models.host_call import HostCall
from compute.models.instance import Instance
from compute.models.keypair import KeyPair
from compute.models.quota import ProjectLock, Quota

__all__ = [
    "Allocation",
    "ComputeNode",
    "Flavor",
    "FlavorAccess",
    "HostCall",
    "HostNeed",
    "Instance",
    "InstanceAction",
    "KeyPair",
    "ProjectLock",
    "Quota",
    "Service",
    "Step",
]
