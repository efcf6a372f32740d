"""Job + cluster -> plan -> script -> submitted run.

`plan` decides, `script` renders its values in front of `batch.sh`, `snapshot` keeps the code, `sbatch` and `executor`
go through submitit, `adopt` notes the job's number; `hold` holds nodes and `warm` runs on them. Plan and script are
pure: what `--dry-run` prints is what runs.
"""
