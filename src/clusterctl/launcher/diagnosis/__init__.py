"""Why a run is waiting, failed, hung or slow: evidence from its files and from Slurm, judged by pure functions."""
