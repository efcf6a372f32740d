"""Models and functions of users: found, built, tried, called, and evaluated exactly.

Start with `model`. `pyg_model` is for models with PyG's `forward(x, edge_index)`; `inference` and `pyg_inference`
evaluate the two kinds.
"""
