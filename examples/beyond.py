"""`python -m examples.beyond`: the losses beyond torch, on which path each runs and in how many launches.

Nothing in the table is typed in but the calls: paths, launches and what torch runs are what `autogen.explain` finds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch
from torch import Tensor, nn

Call = tuple[nn.Module, tuple[Tensor, ...]]
N, C, PLACES = 64, 8, 128


def calls() -> Iterator[Call]:
    """One call of every loss beyond torch."""
    from autogen import losses

    generator = torch.Generator().manual_seed(0)

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def asked(tensor: Tensor) -> Tensor:
        return tensor.requires_grad_()

    def boxes() -> Tensor:
        corner = real(N, C, 2)
        return torch.cat([corner, corner + real(N, C, 2).abs() + 0.1], -1)

    labels = torch.randint(0, C, (N,), generator=generator)
    truth = (real(N, C, PLACES) > 0).float()
    of_row = [real(N) for _ in range(4)]
    for name in ("IoULoss", "GIoULoss", "DIoULoss", "CIoULoss"):
        yield getattr(losses, name)(), (asked(boxes()), boxes())
    for name in ("DiceLoss", "TverskyLoss", "FocalTverskyLoss"):
        yield getattr(losses, name)(), (asked(real(N, C, PLACES)), truth)
    yield losses.DiceLoss(activation="softmax"), (asked(real(N, C, PLACES)), truth)
    for name in ("SigmoidFocalLoss", "AsymmetricLoss"):
        yield getattr(losses, name)(), (asked(real(N, C)), (real(N, C) > 0).float())
    for name in ("FocalLoss", "PolyLoss"):
        yield getattr(losses, name)(), (asked(real(N, C)), labels)
    yield losses.ArcFaceLoss(), (asked(real(N, C).tanh()), labels)
    for name in ("CharbonnierLoss", "LogCoshLoss", "QuantileLoss", "WingLoss"):
        yield getattr(losses, name)(), (asked(real(N, C)), real(N, C))
    yield losses.NegativeBinomialNLLLoss(), (asked(real(N, C).exp()), real(N, C).exp().floor(), real(N, C).exp())
    yield losses.StudentTNLLLoss(), (asked(real(N, C)), real(N, C), real(N, C).exp(), real(N, 1).exp() + 2)
    evidence = (real(N).exp(), real(N).exp() + 1, real(N).exp())
    yield losses.EvidentialRegressionLoss(), (asked(real(N)), real(N), *evidence)
    for name in ("JSDLoss", "TotalVariationLoss", "DistillationLoss"):
        yield getattr(losses, name)(), (asked(real(N, C)), real(N, C))
    yield losses.InfoNCELoss(), (asked(real(N, C)), asked(real(N, C)))
    yield losses.SupConLoss(), (asked(real(N, C)), labels)
    yield losses.CircleLoss(), (asked(real(N, C).tanh()), real(N, C) > 0)
    for name in ("DPOLoss", "IPOLoss"):
        yield getattr(losses, name)(), (asked(of_row[0]), asked(of_row[1]), of_row[2], of_row[3])
    for name in ("SimPOLoss", "ORPOLoss"):
        yield getattr(losses, name)(), (asked(-real(N).abs() - 0.1), asked(-real(N).abs() - 0.1))
    yield losses.KTOLoss(), (asked(real(N)), real(N), real(N) > 0)
    yield losses.PPOClipLoss(), (asked(real(N, C)), real(N, C), real(N, C))
    yield losses.GRPOLoss(), (asked(real(N, C)), real(N, C), real(N), real(N, C) > -1)
    yield losses.CoxPHLoss(), (asked(real(N)), real(N).exp(), real(N) > 0)
    yield losses.SISDRLoss(), (asked(real(N, PLACES)), real(N, PLACES))
    yield losses.VAELoss(), (asked(real(N, PLACES)), real(N, PLACES).sigmoid(), asked(real(N, C)), asked(real(N, C)))


def table() -> str:
    """The table as Markdown."""
    from autogen import explain

    lines = ["| loss | path | launches | torch runs |", "|---|---|---|---|"]
    for loss, inputs in calls():
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
