"""A real Slurm on this machine, from the installed packages; `lifecycle` starts and stops it.

All resources of a sandbox depend on its processes, which carry its mark: when they end, the kernel removes their
namespaces, mounts and network links. So there is little to clean up after a crash.
"""
