"""`clusterctl monitor`: runs, training, devices, logs and the queue in one terminal.

`arrange` says which pane goes where at a size (pure), `panes` turns a Scene into text,
`app` keeps them up to date with Textual, which is imported there alone.
"""
