"""What is known of a run: gathered from its files, and from Slurm only where the files do not settle it.

`find` names runs, `record` and `evidence` read their files, `stage` judges (pure), `status` asks Slurm once for all,
`follow` watches one run, `lines` and `logs` read what it writes.
"""
