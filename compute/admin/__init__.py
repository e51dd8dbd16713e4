"""Admin pages: they show and ask; they never write a state."""

from cells.models import HostMapping, InstanceMapping
from compute.admin import aggregates, catalog, cells, hosts, servers

# Operators know these by other names. Not in the models: there it would be a migration.
for _model, _one, _many in ((HostMapping, "host", "hosts"), (InstanceMapping, "server", "servers")):
    _model._meta.verbose_name, _model._meta.verbose_name_plural = _one, _many

__all__ = ["aggregates", "catalog", "cells", "hosts", "servers"]
