"""Generated data sets, with the raw format and statistics of the real ones, and a structure that models can learn.

The score of the best possible model is known, and saved next to them.
"""
