"""The state of runs, from their files, and from Slurm only if the files are not enough."""
