"""Formulas: what a trace records in the place of torch's own functions and ops, where it has to be another.

`functions.py` has the table of torch's functions, `corrections.py` that of ATen's ops.
"""
