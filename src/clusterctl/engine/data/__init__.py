"""The data sets: readers of their formats, what a user's own loader returns, downloads and generators."""
