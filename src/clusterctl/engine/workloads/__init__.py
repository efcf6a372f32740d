"""What the tasks run: one readable file per workload - data, model, a call to the training loop.

Each has `main(context)`, which a task of a run calls (`shared.node.entry`), and which runs under torchrun with
`python -m clusterctl.train`. To add one: its file here, its Train class and line in `spec.train`, and a job file.
"""
