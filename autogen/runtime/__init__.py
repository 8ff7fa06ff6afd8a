"""From a plan and tensors to results: built modules, allocations, launches."""
