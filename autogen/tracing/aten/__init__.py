"""ATen's ops in a trace: what they return for fake tensors, what they refuse, and as which ops they are recorded."""
