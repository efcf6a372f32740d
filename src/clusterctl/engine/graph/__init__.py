"""Graphs and computation on them: storage, neighbour sampling, blocks, convolutions, full-graph inference.

Read `storage`, `neighbors`, `sampling`, `blocks`, `convolutions`, `inference` in this order. Randomness is in
`hashing`. It is counter-based: a draw depends on its purpose and never on the rank or thread that draws it. `features`
has tables that do not fit into memory, `pyg` replaces PyG's loaders.
"""
