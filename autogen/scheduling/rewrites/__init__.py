"""Rewrite expressions into cheaper ones of the same value, and find values that must agree to the bit."""
