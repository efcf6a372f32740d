"""A real Slurm on this machine, from the installed packages; `lifecycle` starts and ends it.

Everything that a sandbox has depends on its processes, which carry its mark: when they end, the kernel takes the
namespaces, mounts and cables with them. So there is little to clean up, whatever crashed before.
"""
