"""Job + cluster -> plan -> script -> submitted run.

`plan` decides, `script` renders, `snapshot` keeps the code, `submit` writes the run directory, `sbatch` and `executor`
go through submitit, `adopt` notes the job's number. Plan and script are pure: what `--dry-run` prints is what runs.
"""
