"""What the tasks run: one readable file per workload - data, model, a call to the training loop.

Each has `main(context)`, which `runs.entry` calls, and runs under torchrun through `standalone`. To add one: its file
here, its Train class and line in `spec.train`, and a job file.
"""
