"""What the tasks run: one readable file per workload - data, model, a call to the training loop.

Each has `main(context)`, which `runs.entry` calls, and runs by itself under torchrun through
`standalone`. A new one is three places: its file here, its Train class and line in `spec.train`, a job file.
"""
