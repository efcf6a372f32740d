"""`clusterctl monitor`: runs, training, devices, logs and the queue in the terminal.

`panes` lays out the panes for a terminal size and turns a Scene into their text, with the list of runs from `rows`.
`app` keeps them up to date with Textual, which is imported only there.
"""
