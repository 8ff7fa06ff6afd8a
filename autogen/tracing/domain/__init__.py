"""Domains: the calls that a trace holds for, and what has to be known of a call ahead of its kernels."""
