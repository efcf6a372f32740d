"""Slurm's commands for one machine without Slurm: sbatch, srun, squeue, sinfo, scancel and scontrol.

There is no daemon: `sbatch` writes the job into the state folder and starts one detached `supervisor`. Slurm 22.05 is
the reference; only what the rendered script and clusterctl's own questions need is here. The modules avoid what is slow
to import (dataclasses, argparse, subprocess): a stand-in answers in some 35 ms.
"""
