"""Losses with handwritten kernels, where generated ones could not be as good.

Each function here makes one. They import it when called, as Triton takes long to import.

Such are the recursion of CTC, the pairs of MultiLabelMargin, the three sums of CosineEmbedding that its two gradients
share, and the matrix products of InfoNCE and SupCon. To add one: a subclass of
`autogen.runtime.handwritten.Handwritten` in a module here, a function below that makes it, and
`@autogen_loss(handwritten=...)` on the class and in `losses/functional.py`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autogen.runtime.handwritten import Handwritten


@functools.cache
def make_cosine_embedding() -> Handwritten:
    """The kernels of `cosine_embedding_loss`."""
    from autogen.losses.handwritten.cosine_embedding import CosineEmbedding

    return CosineEmbedding()


@functools.cache
def make_ctc() -> Handwritten:
    """The kernels of `ctc_loss`."""
    from autogen.losses.handwritten.ctc import CTC

    return CTC()


@functools.cache
def make_multilabel_margin() -> Handwritten:
    """The kernels of `multilabel_margin_loss`."""
    from autogen.losses.handwritten.multilabel_margin import MultiLabelMargin

    return MultiLabelMargin()


@functools.cache
def make_info_nce(*, always: bool = False, capability: tuple[int, int] | None = None) -> Handwritten:
    """The kernels of `InfoNCELoss`; see `contrastive.Contrastive` for the arguments."""
    from autogen.losses.handwritten.contrastive import InfoNCE

    return InfoNCE(always=always, capability=capability)


@functools.cache
def make_sup_con(*, always: bool = False, capability: tuple[int, int] | None = None) -> Handwritten:
    """The kernels of `SupConLoss`; see `contrastive.Contrastive` for the arguments."""
    from autogen.losses.handwritten.contrastive import SupCon

    return SupCon(always=always, capability=capability)
