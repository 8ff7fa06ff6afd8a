"""Compute losses of the rows of a matrix product in chunks, so that the product never exists as a whole."""
