"""The operations, as typed functions: what `import clusterctl` gives a Python program, and what every command calls."""
