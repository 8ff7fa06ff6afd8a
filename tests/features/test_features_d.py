"""What people see of kernels in their own tools, and what they may set: rows D1 and D21 of the features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import autogen
from autogen import ConfigError, autogen_loss, losses


def ranges(loss: torch.nn.Module, *args: torch.Tensor) -> list[str]:
    """The ranges of autogen's that torch's profiler finds in a call, and in its gradient."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        loss(*args).backward()
    return sorted(event.name for event in profiler.events() if event.name.startswith("autogen::"))


def test_d1_profiler_ranges() -> None:
    x, y = torch.rand(4, 3, requires_grad=True), torch.rand(4, 3)
    bce, cosine = losses.BCELoss(), losses.CosineEmbeddingLoss()
    for _ in range(2):  # captured, and on the fast path
        assert ranges(bce, x, y) == ["autogen::BCELoss.backward", "autogen::BCELoss.forward"]
    for _ in range(3):  # handwritten kernels: planned as they run, prepared, and on the fast path
        assert ranges(cosine, x, y, torch.ones(4)) == [
            "autogen::CosineEmbeddingLoss.backward",
            "autogen::CosineEmbeddingLoss.forward",
        ]
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        bce(x, y)
    assert "autogen::BCELoss.forward" in {event.name for event in profiler.events()}


def test_d1_gradients_have_the_name_of_the_loss() -> None:
    x, y = torch.rand(4, 3, requires_grad=True), torch.rand(4, 3)
    assert losses.BCELoss()(x, y).grad_fn.name() == "BCELossBackward"
    assert losses.CosineEmbeddingLoss()(x, y, torch.ones(4)).grad_fn.name() == "CosineEmbeddingLossBackward"

    class Weighted(losses.MSELoss):
        pass

    assert repr(Weighted()(x, y)).endswith("grad_fn=<WeightedBackward>)")


def test_d21_launch_parameters_need_not_be_given_but_can_be() -> None:
    x, y = torch.rand(64, 300, requires_grad=True), torch.rand(64, 300)
    plain = autogen.explain(losses.MSELoss(), x, y)
    assert plain.forward is not None and plain.forward.configs == ("BLOCK 1024, 4 warps (default)",)
    loss = autogen_loss(losses.MSELoss(), config={"BLOCK": 2048, "num_warps": 8})
    torch.testing.assert_close(loss(x, y), torch.nn.functional.mse_loss(x, y))
    report = autogen.explain(loss, x, y)
    assert report.forward is not None and report.forward.configs == ("BLOCK 2048, 8 warps (set)",)
    apart = autogen.explain(autogen_loss(losses.MSELoss(), config={"backward": {"num_warps": 2}}), x, y)
    assert apart.forward is not None and apart.forward.configs == plain.forward.configs
    assert apart.backward is not None and apart.backward.configs == ("BLOCK 1024, 2 warps (set)",)


def test_d21_a_last_batch_that_is_smaller_takes_the_default() -> None:
    loss = autogen_loss(losses.MSELoss(), config={"BLOCK": 2048, "num_warps": 8})
    for rows, config in ((64, "BLOCK 2048, 8 warps (set)"), (1, "BLOCK 1024, 4 warps (default)")):
        x, y = torch.rand(rows, 300, requires_grad=True), torch.rand(rows, 300)
        torch.testing.assert_close(loss(x, y), torch.nn.functional.mse_loss(x, y))
        report = autogen.explain(loss, x, y)
        assert report.forward is not None and report.forward.configs == (config,)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"ROWS": 4},
            "it has no parameter ROWS\n"
            "You can set BLOCK, num_warps; the default for these sizes is BLOCK 1024, 4 warps.",
        ),
        ({"BLOCK": 1000}, "it cannot have BLOCK 1000, 4 warps\n"),
        ({"forward": {"num_warps": 3}}, "it cannot have BLOCK 1024, 3 warps\n"),
    ],
)
def test_d21_what_a_kernel_does_not_have(config: Any, said: str) -> None:
    x = torch.rand(4, 300, requires_grad=True)
    loss = autogen_loss(losses.MSELoss(), config=config)
    for call in (autogen.explain, lambda loss, *args: loss(*args)):
        with pytest.raises(ConfigError) as raised:
            call(loss, x, x)
        assert f"the kernel mse_loss_forward: {said}" in str(raised.value)


def test_d21_inside_of_torch_compile_too() -> None:
    x = torch.rand(4, 300, requires_grad=True)
    loss = torch.compile(autogen_loss(losses.MSELoss(), config={"ROWS": 4}), backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="it has no parameter ROWS"):
        loss(x, x)


def test_d21_what_is_no_config() -> None:
    for wrong in ({"BLOCK": "1024"}, {"BLOCK": 0}, {"forward": 4}, {"forward": {}, "BLOCK": 1}, [1]):
        with pytest.raises(ValueError, match="config is a mapping such as"):
            autogen_loss(losses.MSELoss(), config=wrong)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="handwritten"):
        autogen_loss(losses.CTCLoss(), config={"BLOCK": 128})
    with pytest.raises(ValueError, match="not both"):
        autogen_loss(losses.MSELoss(), config={"BLOCK": 128}, tune=True)
