"""External events (Compute API reference, os-server-external-events): from Ironic, Neutron, Cinder and others.

`event_types` is the table of event names, `receive` takes a batch and returns the code of each event, `journal` writes
the events of one cell, `deduplication` recognises repeated ones, `deferred` keeps those of a down cell and delivers
them later.
"""
