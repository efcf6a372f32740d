"""The sampler behind `clusterctl.pyg`: PyG's arguments and batches, our sampling."""
