"""Losses of the rows of a matrix product, in chunks: so that the product exists for some rows at a time."""
