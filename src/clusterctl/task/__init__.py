"""Inside each task, below the training: where the ranks meet, their groups and devices, what they do only once.

`meeting` says where (standard library alone, as `workload = "command"` needs it without torch), `rendezvous` connects
and takes the roll, `device` picks one, `task` puts it together.
"""
