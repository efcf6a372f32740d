"""What runs inside each task: the workloads, and the data, training, graphs and process groups below them."""
