"""Data sets that anybody can make: the raw format and statistics of the real ones, and a structure to be found.

How good the best possible model is, is known and written beside them.
"""
