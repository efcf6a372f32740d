"""Runs commands on a login node elsewhere, over one connection of the system's ssh, with nothing to install there.

State is kept there. `forward` sends a command line, or an operation of the Python API, to the clusterctl that `package`
has copied to the other machine, whose `agent` executes it and relays its output.
"""
