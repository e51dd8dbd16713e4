"""What other services say of servers: an Ironic of their power, a Neutron of their ports, a Cinder of their volumes.

`names` is the table of what may be said, `receive` takes a batch apart and answers for each event, `record` writes the
events of one cell into its journal, `late` keeps those of a cell that is down and delivers them when it is back.
"""
