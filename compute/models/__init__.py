"""The database models of compute, one file per subject."""

from compute.models.action import HostNeed, InstanceAction, Step
from compute.models.aggregate import Aggregate, AggregateHost
from compute.models.api_process import ApiProcess
from compute.models.flavor import Flavor, FlavorAccess
from compute.models.host import Allocation, ComputeNode, DrainMigration, Service
from compute.models.host_call import HostCall
from compute.models.instance import Instance
from compute.models.keypair import KeyPair
from compute.models.quota import ProjectLock, Quota
from compute.models.server_group import ServerGroup, ServerGroupMember

__all__ = [
    "Aggregate",
    "AggregateHost",
    "Allocation",
    "ApiProcess",
    "ComputeNode",
    "DrainMigration",
    "Flavor",
    "FlavorAccess",
    "HostCall",
    "HostNeed",
    "Instance",
    "InstanceAction",
    "KeyPair",
    "ProjectLock",
    "Quota",
    "ServerGroup",
    "ServerGroupMember",
    "Service",
    "Step",
]
