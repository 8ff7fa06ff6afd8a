"""The losses of `torch.nn.functional` on fused kernels: the same names, signatures, results and errors.

    import autogen.functional as F
    loss = F.cross_entropy(logits, labels, label_smoothing=0.1)

Shapes, dtypes, formulas and what raises are those of torch's function of the same name. The path of a call is chosen as
for the classes of `autogen.losses`; `autogen.explain(F.cross_entropy, logits, labels)` tells it.
"""

from autogen.losses.functional import *  # noqa: F403
from autogen.losses.functional import __all__ as __all__
