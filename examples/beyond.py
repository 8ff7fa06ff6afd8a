"""`python -m examples.beyond`: the losses beyond torch, on which path each runs and in how many launches.

Nothing in the table is typed in but the calls: paths, launches and what torch runs are what `autogen.explain` finds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn

Call = tuple[nn.Module, tuple[Tensor, ...]]
CHANNELS = 8  # of planes
# Samples, classes or values of each, places of a signal: what one program holds, and what none does.
SMALL, EVEN, ODD = (64, 8, 128), (256, 1000, 1024), (257, 1001, 1025)


def calls(size: tuple[int, int, int] = SMALL) -> Iterator[Call]:
    """One call of every loss beyond torch, of a size as above."""
    from autogen import losses

    n, c, places = size
    generator = torch.Generator().manual_seed(0)

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def asked(tensor: Tensor) -> Tensor:
        return tensor.requires_grad_()

    def boxes() -> Tensor:
        corner = real(n, c, 2)
        return torch.cat([corner, corner + real(n, c, 2).abs() + 0.1], -1)

    labels = torch.randint(0, c, (n,), generator=generator)
    truth = (real(n, CHANNELS, places) > 0).float()
    of_row = [real(n) for _ in range(4)]
    for name in ("IoULoss", "GIoULoss", "DIoULoss", "CIoULoss"):
        yield getattr(losses, name)(), (asked(boxes()), boxes())
    for name in ("DiceLoss", "TverskyLoss", "FocalTverskyLoss"):
        yield getattr(losses, name)(), (asked(real(n, CHANNELS, places)), truth)
    yield losses.DiceLoss(activation="softmax"), (asked(real(n, CHANNELS, places)), truth)
    for name in ("SigmoidFocalLoss", "AsymmetricLoss"):
        yield getattr(losses, name)(), (asked(real(n, c)), (real(n, c) > 0).float())
    for name in ("FocalLoss", "PolyLoss"):
        yield getattr(losses, name)(), (asked(real(n, c)), labels)
    yield losses.ArcFaceLoss(), (asked(real(n, c).tanh()), labels)
    for name in ("CharbonnierLoss", "LogCoshLoss", "QuantileLoss", "WingLoss"):
        yield getattr(losses, name)(), (asked(real(n, c)), real(n, c))
    yield losses.NegativeBinomialNLLLoss(), (asked(real(n, c).exp()), real(n, c).exp().floor(), real(n, c).exp())
    yield losses.StudentTNLLLoss(), (asked(real(n, c)), real(n, c), real(n, c).exp(), real(n, 1).exp() + 2)
    evidence = (real(n).exp(), real(n).exp() + 1, real(n).exp())
    yield losses.EvidentialRegressionLoss(), (asked(real(n)), real(n), *evidence)
    for name in ("JSDLoss", "TotalVariationLoss", "DistillationLoss"):
        yield getattr(losses, name)(), (asked(real(n, c)), real(n, c))
    dims = min(c, 128 - c % 2)  # of embeddings
    yield losses.InfoNCELoss(), (asked(real(n, dims)), asked(real(n, dims)))
    yield losses.SupConLoss(), (asked(real(n, dims)), labels)
    yield losses.CircleLoss(), (asked(real(n, c).tanh()), real(n, c) > 0)
    for name in ("DPOLoss", "IPOLoss"):
        yield getattr(losses, name)(), (asked(of_row[0]), asked(of_row[1]), of_row[2], of_row[3])
    for name in ("SimPOLoss", "ORPOLoss"):
        yield getattr(losses, name)(), (asked(-real(n).abs() - 0.1), asked(-real(n).abs() - 0.1))
    yield losses.KTOLoss(), (asked(real(n)), real(n), real(n) > 0)
    yield losses.PPOClipLoss(), (asked(real(n, c)), real(n, c), real(n, c))
    yield losses.GRPOLoss(), (asked(real(n, c)), real(n, c), real(n), real(n, c) > -1)
    yield losses.CoxPHLoss(), (asked(real(n)), real(n).exp(), real(n) > 0)
    yield losses.SISDRLoss(), (asked(real(n, places)), real(n, places))
    yield losses.VAELoss(), (asked(real(n, places)), real(n, places).sigmoid(), asked(real(n, c)), asked(real(n, c)))


def table() -> str:
    """The table as Markdown."""
    from autogen import explain

    lines = ["| loss | path | launches | torch runs |", "|---|---|---|---|"]
    for loss, inputs in calls(ODD):
        report = explain(loss, *inputs)
        directions = [each for each in (report.forward, report.backward) if each is not None]
        launches = " + ".join(str(each.launches) for each in directions)
        steps = dict.fromkeys(step.partition(",")[0] for each in directions for step in each.torch_steps)
        name = type(loss).__name__
        softmax = name == "DiceLoss" and "softmax" in repr(loss)
        cells = [f"{name} of a softmax" if softmax else name, report.path, launches, ", ".join(steps)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    print(table())
