"""Runs commands on a login node elsewhere, over one connection of the system's ssh, with nothing to install there.

State is kept there. A command line, typed or made by the Python API, is sent to the clusterctl that `package` has
copied to the other machine, whose `agent` executes it and relays its output.
"""
