"""Emission: a kernel of the plan → Triton source (`autogen.emission.emit`)."""
