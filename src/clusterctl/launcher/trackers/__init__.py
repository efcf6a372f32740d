"""Mirrors the metrics of a run to trackers, from its files: start with `mirror`.

Each tracker is one file, which imports its library when opened.
"""
