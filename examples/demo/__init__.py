"""The demo, which `make demo` or `python -m examples.demo` runs."""
