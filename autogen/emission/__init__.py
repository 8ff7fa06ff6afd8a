"""Emit the Triton source of a kernel; the entry is `autogen.emission.emit`."""
