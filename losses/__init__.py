"""Losses on fused kernels: the classes of `torch.nn`, by their names, and losses beyond torch.

Each takes the argument `use_autogen` besides, which is true by default.

To add a loss of torch: a subclass of torch's class in `torch_losses`, with its name in `__all__`, and a row in
`tests/interpret/table.py`. To add another: plain PyTorch under `@autogen_loss` in the module of its field, with a
formula of another kind in `tests/interpret/references.py`, a case in `beyond.py`, values by hand in
`test_beyond_torch_edges.py`, and its path in `test_beyond_torch.py`. `python -m tests.codegen.regenerate` writes the
types in `__init__.pyi`.
"""

from torch import nn

from autogen.losses.audio import *  # noqa: F403
from autogen.losses.boxes import *  # noqa: F403
from autogen.losses.classification import *  # noqa: F403
from autogen.losses.contrastive import *  # noqa: F403
from autogen.losses.distillation import *  # noqa: F403
from autogen.losses.likelihood import *  # noqa: F403
from autogen.losses.linear import *  # noqa: F403
from autogen.losses.policy_gradient import *  # noqa: F403
from autogen.losses.preference import *  # noqa: F403
from autogen.losses.projected import *  # noqa: F403
from autogen.losses.regression import *  # noqa: F403
from autogen.losses.segmentation import *  # noqa: F403
from autogen.losses.sharded import *  # noqa: F403
from autogen.losses.survival import *  # noqa: F403
from autogen.losses.torch_losses import *  # noqa: F403

__all__ = sorted(name for name, value in list(globals().items()) if isinstance(value, type))


def _make_extensible(cls: type[nn.Module], name: str) -> None:
    """Let Hugging Face's `kernels` replace `forward` by layers of a name, but not that of a derived class's own."""
    forward = cls.forward
    cls.kernel_layer_name = name  # type: ignore[assignment]
    cls.kernel_condition = staticmethod(  # type: ignore[assignment]
        lambda module: type(module).forward is forward and module.use_autogen
    )


for _name in __all__:
    _make_extensible(globals()[_name], _name)
