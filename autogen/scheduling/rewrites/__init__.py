"""Rewrites: expressions → cheaper ones of the same values; what must have the same bits, and what is the same."""
