"""Graphs and what is computed on them: storage, neighbour sampling, blocks, convolutions, full-graph inference.

Read `storage`, `neighbors`, `sampling`, `blocks`, `convolutions`, `inference` in this order. Randomness is in
`hashing`: counter-based, so that a draw depends on what it is for and never on who draws it.
"""
