"""Group expressions into kernels, and choose what forward saves for backward."""
