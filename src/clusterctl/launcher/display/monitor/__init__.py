"""`clusterctl monitor`: runs, training, devices, logs and the queue in the terminal.

`arrange` lays out the panes for a terminal size, `panes` turns a Scene into text, and `app` keeps them up to date with
Textual, which is imported only there.
"""
