"""A real Slurm on this machine, from the installed packages.

`up`, `down` and `status` are what the command line calls. `record` says what a sandbox is, `files` writes what its
daemons read, `processes` starts, finds and ends them, `network` joins the nodes, `node` starts one (`init` is its first
process), `accounting` adds slurmdbd and its database, `cgroups` sweeps up after slurmd, `packages` names what is not
installed.

Everything that a sandbox has hangs on its processes, which carry its mark: when they end, the kernel takes the
namespaces, mounts and cables with them. So there is little to clean up, whatever crashed before.
"""
