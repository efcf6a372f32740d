"""What is verified before a run is submitted or resumed, and by `doctor`: machine, cluster, container, data."""
