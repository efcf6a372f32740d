"""Mirrors the metrics of a run into trackers, from its files: begin with `mirror`.

Each tracker is one file, which imports its library when it is opened.
"""
