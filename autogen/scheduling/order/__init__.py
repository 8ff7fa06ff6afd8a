"""Order what forward and backward compute, and choose what the first saves for the other."""
