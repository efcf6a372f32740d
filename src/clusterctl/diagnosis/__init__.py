"""Why a run waits, failed, hangs or is slow: evidence from its files and from Slurm, judged by pure rules."""
