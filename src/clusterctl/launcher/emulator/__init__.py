"""Slurm's commands for one machine without Slurm: sbatch, srun, squeue, sinfo, scancel and scontrol.

There is no daemon: `sbatch` writes the job into the state folder and starts one detached `supervisor`. Slurm 22.05 is
the reference; only what the rendered script and clusterctl's own queries need is implemented. The modules avoid slow
imports (dataclasses, argparse, subprocess), so that a command answers in about 35 ms.
"""
