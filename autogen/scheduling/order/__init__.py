"""Order: one direction of a loss → what forward and backward compute when, and what the first keeps for the other."""
