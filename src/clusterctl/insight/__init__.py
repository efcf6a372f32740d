"""Judgements: evidence in, findings out. Pure rules, nothing is read or asked here.

`doctor` judges this machine and a cluster.
"""
