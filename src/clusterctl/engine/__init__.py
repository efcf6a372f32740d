"""What runs inside each task: the workloads, and the training, graphs and process groups below them."""
