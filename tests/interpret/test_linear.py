"""Losses of a head, over their options, two at a time: against references in double precision, halves, edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import autogen.losses
from autogen import autogen_loss, explain, policy
from autogen.losses.linear._head import HeadOutputs
from autogen.report.samples import ODD, calls_beyond_torch
from tests.interpret import references_of_heads as heads
from tests.interpret.compare import upstream_of
from tests.interpret.samples import Samples

N, T, H, V = 4, 5, 6, 7  # answers, tokens, features, classes
FLOATS = ("hidden", "weight", "bias", "teacher_hidden", "teacher_weight", "teacher_bias", "token_weight", "reference")


class Case(NamedTuple):
    """A loss, its options, and which arguments it is given beside hidden states and a weight."""

    loss: str
    reference: Callable[..., Any]
    options: Mapping[str, Any]
    given: tuple[str, ...]

    def __repr__(self) -> str:
        return "-".join([self.loss, *(f"{key}={value}" for key, value in self.options.items()), *self.given])

    def draw(self, dtype: torch.dtype = torch.float64, rows: tuple[int, ...] = (N, T)) -> dict[str, Any]:
        """Arguments by name; floats ask for their gradient, but for those that a loss takes as they are."""
        s = Samples(dtype)
        labels = s.label(V, *rows)
        labels.view(-1)[1:3] = 3 if "ignore_index" in self.options else -100
        made: dict[str, Callable[[], Any]] = {
            "labels": lambda: labels,
            "bias": lambda: s.real(V),
            "token_weight": lambda: s.probability(*rows) * 3,
            "num_items": lambda: torch.tensor(9),
            "mask": lambda: torch.arange(rows[-1]).expand(rows) < rows[-1] - 1,
            "teacher_hidden": lambda: s.real(*rows, 3),
            "teacher_weight": lambda: s.real(V, 3),
            "teacher_bias": lambda: s.real(V),
            "reference": lambda: s.real(*rows[:1]) - 9,
            "references": lambda: s.real(*rows) - 2,
            "reference_hidden": lambda: s.real(*rows, 3),
            "reference_weight": lambda: s.real(V, 3),
            "reference_bias": lambda: s.real(V),
            "target": lambda: torch.arange(rows[0]) % 2 == 0,
            "mismatched": lambda: s.real(3) + 1,
            "advantage": lambda: s.real(*rows[:1]),
            "old": lambda: s.real(*rows) / 4 - 2,
        }
        drawn = {"hidden": s.real(*rows, H), "weight": s.real(V, H)} | {name: made[name]() for name in self.given}
        if "references" in drawn:
            drawn["reference"] = drawn.pop("references")
        return {k: v.requires_grad_(k in FLOATS and v.is_floating_point()) for k, v in drawn.items()}

    def run(self, drawn: Mapping[str, Any], *, chunk: int | None = None, **options: Any) -> list[Tensor]:
        """The value of the loss, in chunks of so many rows, and the gradients of all that asks for them."""
        loss = getattr(autogen.losses, self.loss)(**self.options, **options)
        if chunk is not None:
            loss = autogen_loss(loss, chunk=chunk)
            report = explain(loss, **drawn)
            assert report.forward is not None and report.forward.chunks, report.reason
            gradients(loss(**drawn), drawn)  # the second call is host code's
        return gradients(loss(**drawn), drawn)

    def expected(self, drawn: Mapping[str, Any], reduction: str) -> list[Tensor]:
        """The same of the reference."""
        losses, total = self.reference(**drawn, **self.options)
        value = losses if reduction == "none" else losses.sum() / (total.sum() if reduction == "mean" else 1)
        return gradients(value, drawn)


def gradients(value: Tensor, drawn: Mapping[str, Any]) -> list[Tensor]:
    """A value, and the gradients of what asks for them, 0 where it does not depend on it."""
    asked = [each for each in drawn.values() if each.requires_grad]
    upstream = upstream_of("eighths", value.shape, value.dtype)
    found = torch.autograd.grad(value, asked, upstream, allow_unused=True)
    return [value.detach(), *(torch.zeros_like(a) if f is None else f for a, f in zip(asked, found, strict=True))]


def doubled(drawn: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: each.detach().double().requires_grad_(each.requires_grad) if each.is_floating_point() else each
        for name, each in drawn.items()
    }


CE: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({}, ("labels", "bias")),
    ({"z_loss": 0.1, "softcap": 2.0}, ("labels",)),
    ({"z_loss": 0.1, "label_smoothing": 0.2}, ("labels", "token_weight")),
    ({"softcap": 2.0, "label_smoothing": 0.2}, ("labels", "bias")),
    ({"ignore_index": 3, "z_loss": 0.1}, ("labels", "bias")),
    ({"ignore_index": 3, "softcap": 2.0}, ("labels", "token_weight")),
    ({"ignore_index": 3, "label_smoothing": 0.2}, ("labels", "num_items")),
    ({"z_loss": 0.1}, ("labels", "token_weight", "num_items")),
)
TEACHER = ("teacher_hidden", "teacher_weight")
DISTILLATION: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"temperature": 2.0}, ("mask",)),
    ({"hard": 0.3, "temperature": 2.0}, ("labels", "bias", "teacher_bias")),
    ({"divergence": "reverse_kl", "temperature": 0.5}, ("labels",)),
    ({"divergence": "reverse_kl", "hard": 0.3}, ("labels", "mask")),
    ({"divergence": "jsd", "beta": 0.1}, ("mask", "bias", "teacher_bias")),
    ({"divergence": "jsd", "temperature": 2.0}, ("labels", "num_items")),
    ({"divergence": "jsd", "hard": 1.0, "beta": 0.8}, ("labels", "num_items")),
    ({"ignore_index": 3, "hard": 0.3}, ("labels", "mask")),
)
REFERENCE = ("reference_hidden", "reference_weight")
DPO: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"beta": 0.5}, ("labels", "reference", "bias")),
    ({"beta": 0.5, "average": True}, ("labels", *REFERENCE)),
    ({"ignore_index": 3}, ("labels", *REFERENCE, "bias", "reference_bias")),
)
GRPO: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({}, ("mask", "bias")),
    ({"clip": 0.1, "temperature": 2.0}, ("mask", "old")),
    ({"beta": 0.1, "clip_high": 0.3}, ("old", "references")),
    ({"loss_type": "bnpo", "clip": 0.1}, ("mask", "old")),
    ({"loss_type": "bnpo", "beta": 0.1}, ("old", *REFERENCE, "reference_bias", "bias")),
    ({"loss_type": "dapo", "clip_high": 0.3}, ("mask", "old", "num_items")),
    ({"loss_type": "dr_grpo", "max_length": 9}, ("mask", "old")),
    ({"loss_type": "dr_grpo", "temperature": 2.0}, ("mask",)),
    ({"loss_type": "cispo", "clip": 1.0, "clip_high": 0.1}, ("mask", "old")),
    ({"loss_type": "cispo", "beta": 0.1}, ("old", *REFERENCE, "num_items")),
    ({"loss_type": "gspo", "clip": 0.02}, ("mask", "old")),
    ({"loss_type": "gspo", "beta": 0.1}, ("old", "references", "num_items")),
    ({"ignore_index": 3, "temperature": 0.5}, ("old", "num_items")),
)
CASES = (
    *(Case("FusedLinearCrossEntropyLoss", heads.cross_entropy, *each) for each in CE),
    *(Case("FusedLinearDistillationLoss", heads.distillation, o, (*TEACHER, *given)) for o, given in DISTILLATION),
    *(Case("FusedLinearDPOLoss", heads.dpo, {"label_smoothing": 0.1, **o}, given) for o, given in DPO),
    *(Case("FusedLinearIPOLoss", heads.ipo, *each) for each in DPO),
    Case("FusedLinearSimPOLoss", heads.simpo, {"beta": 1.0, "gamma": 0.3}, ("labels", "bias")),
    Case("FusedLinearSimPOLoss", heads.simpo, {"ignore_index": 3}, ("labels",)),
    Case("FusedLinearORPOLoss", heads.orpo, {"beta": 0.4}, ("labels", "bias")),
    Case("FusedLinearORPOLoss", heads.orpo, {"ignore_index": 3}, ("labels",)),
    Case("FusedLinearKTOLoss", heads.kto, {"beta": 0.4, "average": True}, ("labels", "target", "reference", "bias")),
    Case(
        "FusedLinearKTOLoss",
        heads.kto,
        {"undesirable_weight": 0.5, "ignore_index": 3},
        ("labels", "target", *REFERENCE, "reference_bias", "mismatched"),
    ),
    *(Case("FusedLinearGRPOLoss", heads.grpo, o, ("labels", "advantage", *given)) for o, given in GRPO),
)
REDUCTIONS = ("mean", "sum", "none")
FEW = tuple({case.loss: case for case in CASES}.values())  # the last of each loss


def reductions_of(case: Case) -> tuple[str, ...]:
    return ("mean",) if "num_items" in case.given else REDUCTIONS


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_options(case: Case) -> None:
    drawn = case.draw()
    for reduction in reductions_of(case):
        exact = case.expected(drawn, reduction)
        for use_autogen in (True, False):
            with policy("mandatory" if use_autogen else "default"):
                found = case.run(drawn, reduction=reduction, use_autogen=use_autogen)
            torch.testing.assert_close(found, exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_in_chunks(case: Case) -> None:
    """The last of them has fewer rows."""
    drawn = case.draw()
    for reduction in reductions_of(case)[::2]:
        with policy("mandatory"):
            found = case.run(drawn, chunk=8, reduction=reduction)
        torch.testing.assert_close(found, case.expected(drawn, reduction), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.loss)
@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_what_is_frozen(case: Case, frozen: str) -> None:
    drawn = case.draw()
    drawn[frozen] = drawn[frozen].detach()
    torch.testing.assert_close(case.run(drawn), case.expected(drawn, "mean"), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("case", FEW, ids=lambda case: case.loss)
@pytest.mark.parametrize(
    ("dtype", "chunk"),
    [(torch.bfloat16, None), (torch.float16, None), (torch.bfloat16, 8), (torch.float16, 8)],
    ids=str,
)
def test_halves(case: Case, dtype: torch.dtype, chunk: int | None) -> None:
    """An error is at most twice that of the loss as it is written; torch multiplies halves for both."""
    drawn = case.draw(dtype)
    ours, theirs = case.run(drawn, chunk=chunk), case.run(drawn, use_autogen=False)
    assert ours[0].dtype == theirs[0].dtype == torch.float32
    for own, their, true in zip(ours, theirs, case.expected(doubled(drawn), "mean"), strict=True):
        assert own.dtype == their.dtype
        error, allowed = (own - true).abs().max(), (their - true).abs().max()
        assert error <= 2 * allowed + torch.finfo(torch.float32).eps * (1 + true.abs().max()), f"{error}, {allowed}"


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.loss)
def test_few_tokens(case: Case) -> None:
    """A token for each answer; of pairs there are two answers."""
    answers = 2 if case.reference in (heads.dpo, heads.ipo, heads.simpo, heads.orpo) else 1
    drawn = case.draw(rows=(answers, 1))
    if "labels" in drawn:
        drawn["labels"] = torch.zeros_like(drawn["labels"])
    torch.testing.assert_close(case.run(drawn), case.expected(drawn, "mean"), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("use_autogen", [True, False])
@pytest.mark.parametrize("case", FEW, ids=lambda case: case.loss)
def test_no_token(case: Case, use_autogen: bool) -> None:
    drawn = case.draw(rows=(0, T))
    value, *found = case.run(drawn, reduction="mean" if "num_items" in drawn else "sum", use_autogen=use_autogen)
    assert value == 0 and not any(each.any() for each in found)


@pytest.mark.parametrize("use_autogen", [True, False])
@pytest.mark.parametrize("case", FEW, ids=lambda case: case.loss)
def test_all_ignored(case: Case, use_autogen: bool) -> None:
    """Losses of tokens are 0 with gradients of 0. Answers without tokens are compared all the same, and give none."""
    if case.reference is heads.orpo:
        pytest.skip("an answer without tokens has no odds")
    drawn = case.draw()
    drawn["labels"] = torch.full((N, T), case.options.get("ignore_index", -100))
    value, *found = case.run(drawn, use_autogen=use_autogen)
    if case.reference in (heads.cross_entropy, heads.distillation, heads.grpo):
        assert value == 0
    assert value.isfinite()
    assert not any(
        each.any()
        for name, each in zip((k for k, v in drawn.items() if v.requires_grad), found, strict=True)
        if name != "reference"
    )


@pytest.mark.parametrize("name", sorted({case.loss for case in CASES}))
def test_logits_are_read_once_each_way(name: str) -> None:
    """What is known of answers is computed once, and not again for each of their tokens."""
    (call,) = [(loss, inputs) for loss, inputs in calls_beyond_torch(ODD) if type(loss).__name__ == name]
    report = explain(call[0], *call[1])
    for direction in (report.forward, report.backward):
        assert direction is not None and direction.bytes_moved < 1.01 * direction.bytes_minimum, direction.source


def test_outputs_of_cross_entropy() -> None:
    case = Case("FusedLinearCrossEntropyLoss", heads.cross_entropy, {"z_loss": 0.1}, ("labels", "bias"))
    drawn = case.draw()
    loss = autogen.losses.FusedLinearCrossEntropyLoss(z_loss=0.1, outputs=("lse", "entropy", "accuracy", "token_loss"))
    with policy("mandatory"):
        found = loss(**drawn)
    assert isinstance(found, HeadOutputs) and found.log_prob is None
    torch.testing.assert_close(gradients(found.loss, drawn), case.expected(drawn, "mean"), rtol=1e-9, atol=1e-12)
    assert not any(each.requires_grad for each in found[1:] if each is not None)
    logits = drawn["hidden"] @ drawn["weight"].t() + drawn["bias"]
    counted = drawn["labels"] != -100
    hits = logits.argmax(-1)[counted] == drawn["labels"][counted]
    torch.testing.assert_close(found.lse, logits.logsumexp(-1).detach())
    torch.testing.assert_close(found.entropy, heads.entropy(drawn["hidden"], drawn["weight"], drawn["bias"]))
    torch.testing.assert_close(found.accuracy, hits.float().mean())
    torch.testing.assert_close(found.token_loss, case.reference(**drawn, z_loss=0.1)[0].detach())
    alone = autogen.losses.FusedLinearCrossEntropyLoss(outputs="lse")(**drawn)
    assert alone.entropy is alone.accuracy is alone.token_loss is None


def test_outputs_of_grpo() -> None:
    case = Case("FusedLinearGRPOLoss", heads.grpo, {"temperature": 2.0}, ("labels", "advantage", "mask", "old"))
    drawn = case.draw()
    loss = autogen.losses.FusedLinearGRPOLoss(temperature=2.0, outputs=["log_prob", "entropy"])
    with policy("mandatory"):
        found = loss(**drawn)
    torch.testing.assert_close(gradients(found.loss, drawn), case.expected(drawn, "mean"), rtol=1e-9, atol=1e-12)
    assert not found.log_prob.requires_grad and not found.entropy.requires_grad
    counted = (drawn["labels"] != -100) & drawn["mask"]
    log_prob = (drawn["hidden"] @ drawn["weight"].t() / 2).log_softmax(-1)
    picked = log_prob.gather(-1, drawn["labels"].clamp(min=0).unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found.log_prob, torch.where(counted, picked, 0).detach())
    entropy = heads.entropy(drawn["hidden"], drawn["weight"], temperature=2.0)
    torch.testing.assert_close(found.entropy, torch.where(counted, entropy, 0))


@pytest.mark.slow
def test_numbers_of_items() -> None:
    """A number of Python's does what a tensor does."""
    case = Case("FusedLinearCrossEntropyLoss", heads.cross_entropy, {}, ("labels",))
    drawn, loss = case.draw(), autogen.losses.FusedLinearCrossEntropyLoss()
    for number in (9, 9.0, torch.tensor(9), torch.tensor(9.0)):
        torch.testing.assert_close(loss(**drawn, num_items=number), loss(**drawn) * 18 / 9)


@pytest.mark.slow
def test_gradcheck() -> None:
    for case in (CASES[1], CASES[12], CASES[-1]):
        drawn = case.draw(rows=(2, 2))
        asked = [name for name, each in drawn.items() if each.requires_grad]
        loss = getattr(autogen.losses, case.loss)(**case.options)

        def value(*tensors: Tensor, asked: list[str] = asked, drawn: dict[str, Any] = drawn, loss: Any = loss) -> Any:
            return loss(**{**drawn, **dict(zip(asked, tensors, strict=True))})

        inputs = tuple(drawn[name] for name in asked)
        assert torch.autograd.gradcheck(value, inputs) and torch.autograd.gradgradcheck(value, inputs)
