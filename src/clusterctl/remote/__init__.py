"""The same commands on a login node elsewhere: over one connection of the system's ssh, nothing to install there.

The state stays there. `forward` sends a command line, or an operation of the Python API, to the clusterctl that
`package` has put on the other machine, whose `agent` carries it out and relays what it prints.
"""
