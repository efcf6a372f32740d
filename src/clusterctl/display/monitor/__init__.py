"""`clusterctl monitor`: runs, training, devices, logs and the queue in one terminal.

`arrange` says which pane goes where at a size (pure), the panes turn a Scene into text, `frame` prints them once,
`app` keeps them up to date with Textual, which is imported there alone.
"""
