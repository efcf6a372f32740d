"""What is known of a run: gathered from its files, and from Slurm only where the files do not settle it."""
