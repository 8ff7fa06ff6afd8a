"""User settings: the options of a decorated loss, and the policy."""
