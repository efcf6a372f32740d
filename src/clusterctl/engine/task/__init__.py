"""Inside each task, below the training: rendezvous of the ranks, their groups and devices, and work done only once.

`meeting` publishes and finds the address (standard library only: `workload = "command"` needs it without torch),
`rendezvous` connects the ranks and calls the roll, `task` picks a device and combines them. `worker` is for threads
that use that device beside the training.
"""
