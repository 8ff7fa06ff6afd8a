"""Batches of variable-length samples: collate functions for `torch.utils.data.DataLoader`, and copies to a device.

>>> fields = ["boxes", "labels"]                                                                    # doctest: +SKIP
>>> loader = DataLoader(faces, 1024, collate_fn=partial(ragged_collate, fields=fields))             # doctest: +SKIP
>>> for batch in loader:                                                                            # doctest: +SKIP
...     batch = to_device(batch, "cuda")

Samples are tensors, NumPy arrays, numbers and text, also in dictionaries, lists, tuples, named tuples, and in
dataclasses that `torch.export.register_dataclass` has made known to torch; a batch has the containers of its samples.
`fields` names those whose first dimension differs from sample to sample: by keys, names and indices joined by dots,
such as "target.boxes" and "1", where a name stands for everything below it. Without `fields`, these are all tensors
that have dimensions. So what a field becomes never depends on whether some lengths happen to be equal. All other fields
are collated by torch's `default_collate`.
"""

from __future__ import annotations

from autogen.data.batches import Padded, padded_collate, ragged_collate, to_device
from autogen.data.jagged import ragged

__all__ = ["Padded", "padded_collate", "ragged", "ragged_collate", "to_device"]
