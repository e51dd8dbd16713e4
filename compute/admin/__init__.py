"""Admin pages: they show records and ask for actions; no page writes a server's state itself."""

from cells.models import HostMapping, InstanceMapping
from compute.admin import aggregates, catalog, cells, hosts, servers

# The names operators use. In the models they would need a migration.
for _model, _one, _many in ((HostMapping, "host", "hosts"), (InstanceMapping, "server", "servers")):
    _model._meta.verbose_name, _model._meta.verbose_name_plural = _one, _many

__all__ = ["aggregates", "catalog", "cells", "hosts", "servers"]
