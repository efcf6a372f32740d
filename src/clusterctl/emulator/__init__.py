"""Slurm's commands for one machine without Slurm: sbatch, srun, squeue, sinfo, scancel and scontrol.

There is no daemon. `sbatch` writes the job into the state folder and starts one detached `supervisor`, which waits for
slots of the virtual nodes (`slots`), runs the batch script and records the end. Slurm 22.05 is the reference, and only
what the rendered script and clusterctl's own questions need is here.

    install      writes the stand-ins          stand_in     where each of them begins
    machine      the virtual nodes             request      what sbatch was asked for
    jobs         the folder of each job        fifo         how commands talk to supervisors and steps
    processes    starting and ending them      environment  the SLURM_* variables

The modules avoid what is slow to import (dataclasses, argparse, subprocess): a stand-in answers in some 35 ms.
"""
