"""Scheduling: which axes a kernel walks, at which level each value lives, what forward keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor, nn

import autogen.ir.sizes
import autogen.scheduling.launches.kernel
from autogen import ir
from autogen.ir import Node
from autogen.ir.names import unique
from autogen.ir.sizes import evaluator_of
from autogen.ir.torch_step import TorchStep
from autogen.scheduling.launches.kernel import Kernel, Level
from autogen.scheduling.plan import Plan
from autogen.scheduling.rewrites import simplify
from autogen.scheduling.schedule import backward_of, schedule
from tests.unit.pipeline import Loss, Reference, floats, plan_of, program_of, weighted
from tests.unit.verify import verify

X, PROBABILITY = floats(3, 4), floats(3, 4).sigmoid().detach()
LABELS = torch.tensor([0, 1, 2])


def names(axes: Any) -> str:
    return " ".join(map(str, axes))


def gaussian(x: Tensor, t: Tensor, variance: Tensor) -> Tensor:
    return ((x - t) ** 2 / variance + variance.log()).mean()


# rows, columns and whether a program needs whole rows: forward, then backward
Shape = tuple[str, str, bool]
FLAT: Shape = ("n c", "", False)
TILED: Shape = ("n", "c", False)
WHOLE_ROWS: Shape = ("n", "c", True)

SHAPES: dict[str, tuple[Loss, tuple[Any, ...], Shape, Shape]] = {
    "elementwise": (nn.BCEWithLogitsLoss(), (X, PROBABILITY), FLAT, FLAT),
    "elementwise, unreduced": (nn.MSELoss(reduction="none"), (X, PROBABILITY), FLAT, FLAT),
    "a weight per column": (weighted, (X, PROBABILITY, floats(4, grad=False)), TILED, TILED),
    "a variance per row": (gaussian, (X, PROBABILITY, PROBABILITY[:, :1]), TILED, TILED),
    "classes": (nn.CrossEntropyLoss(), (X, LABELS), WHOLE_ROWS, TILED),
    "classes in the middle": (
        nn.CrossEntropyLoss(),
        (floats(2, 4, 3, 2), torch.ones(2, 3, 2).long()),
        ("n d1 d2", "c", True),
        ("n d1 d2", "c", False),
    ),
    "distances": (nn.TripletMarginLoss(), tuple(floats(3, 4, seed=k) for k in range(3)), WHOLE_ROWS, TILED),
    "a softmax": (lambda x: x.softmax(1), (X,), WHOLE_ROWS, WHOLE_ROWS),
    "sums of columns": (lambda x: x.exp().sum(0), (X,), ("c", "n", True), ("n", "c", False)),
    "a formula of sums": (lambda x: 1 - x.sigmoid().sum() / (x.exp().sum() + 1), (X,), FLAT, FLAT),
}


@pytest.mark.parametrize("name", SHAPES)
def test_rows_and_columns(name: str) -> None:
    loss, args, *expected = SHAPES[name]
    plan, sizes = plan_of(loss, *args)
    kernels = (*plan.forward, *backward_of(plan))
    assert [(names(k.rows), names(k.columns), k.whole_rows) for k in kernels] == expected
    Reference(loss, *args).check_plan(plan, sizes)


def test_axes_are_ordered_as_memory_is() -> None:
    transposed = floats(4, 3).detach().t().requires_grad_()
    plan, _ = plan_of(lambda x: x.exp().sum(), transposed)
    assert names(plan.forward[0].rows) == "c n"


def test_hints_order_loops_and_change_nothing_else() -> None:
    program, sizes = program_of(nn.CrossEntropyLoss(), X, LABELS)
    misled = {name: 1000 - k for k, name in enumerate(sizes)}
    Reference(nn.CrossEntropyLoss(), X, LABELS).check_plan(schedule(program, "loss", misled, training=True), sizes)


class TestLevels:
    @staticmethod
    def by_op(kernel: Kernel, op: str) -> set[Level]:
        nodes = ir.topological(root.node for root in kernel.roots)
        return {kernel.level(node) for node in nodes if node.op == op}

    def test_of_cross_entropy(self) -> None:
        plan, _ = plan_of(nn.CrossEntropyLoss(weight=floats(4, grad=False)), X, LABELS)
        (kernel,) = plan.forward
        assert {kernel.level(node) for node in kernel.loads() if node.attrs[0].name == "target"} == {Level.ROW}
        # The logits are read as elements, and once more per row, at the label.
        assert {kernel.level(node) for node in kernel.loads() if node.attrs[0].name == "input"} == {
            Level.ELEMENT,
            Level.ROW,
        }
        assert self.by_op(kernel, "exp_nonpositive") == {Level.ELEMENT}
        assert self.by_op(kernel, "log") == {Level.ROW}
        assert kernel.level(next(root.node for root in kernel.finals if root.buffer.name == "loss")) == Level.FINAL

    def test_of_backward(self) -> None:
        (kernel,) = backward_of(plan_of(nn.CrossEntropyLoss(), X, LABELS)[0])
        levels = {node.attrs[0].name: kernel.level(node) for node in kernel.loads()}
        assert levels["grad_loss"] == levels["total_weight"] == Level.SCALAR
        assert levels["row_max"] == levels["target"] == Level.ROW
        assert levels["input"] == Level.ELEMENT

    def test_of_a_value_per_column(self) -> None:
        (kernel,) = plan_of(lambda x, w: (x * w.exp()).abs().sum(), X.detach(), floats(4, grad=False))[0].forward
        assert self.by_op(kernel, "exp") == {Level.COLUMN}

    def test_what_follows_from_a_whole_row_is_per_row(self) -> None:
        """Even where there is one row only, so that no axis says so."""
        (kernel,) = plan_of(lambda x: x - x.logsumexp(0), floats(4, grad=False))[0].forward
        assert kernel.rows == () and names(kernel.columns) == "n"
        assert self.by_op(kernel, "log") == {Level.ROW}


class TestStatistics:
    @pytest.mark.parametrize(
        ("loss", "args", "kept"),
        [
            (nn.BCEWithLogitsLoss(), (X, PROBABILITY), {}),
            (nn.CrossEntropyLoss(), (X, LABELS), {"row_max": "N", "sum_exp": "N", "total_weight": ""}),
            (nn.CrossEntropyLoss(reduction="sum"), (X, LABELS), {"row_max": "N", "sum_exp": "N"}),
            (lambda x: 1 - x.sum() / (x.exp().sum() + 1), (X,), {"x_sum": "", "exponential_sum": ""}),
        ],
    )
    def test_are_one_number_per_row_or_loss(self, loss: Loss, args: Any, kept: dict[str, str]) -> None:
        plan, _ = plan_of(loss, *args)
        assert {buffer.name: names(buffer.shape) for buffer in plan.saved} == kept
        assert all(buffer.role == "saved" for buffer in plan.saved)

    def test_are_read_back_and_not_computed_again(self) -> None:
        plan, _ = plan_of(nn.CrossEntropyLoss(), X, LABELS)
        (kernel,) = backward_of(plan)
        assert "reduce" not in {node.op for node in ir.topological(root.node for root in kernel.roots)}
        assert {load.attrs[0] for load in kernel.loads()} >= set(plan.saved)

    def test_are_not_kept_where_no_backward_follows(self) -> None:
        with torch.no_grad():
            plan, _ = plan_of(nn.CrossEntropyLoss(), X, LABELS)
        assert plan.saved == () and backward_of(plan) == ()
        assert [root.buffer.name for root in plan.forward[0].roots] == ["loss"]

    def test_that_wait_for_the_upstream_gradient_stay_in_backward(self) -> None:
        plan, _ = plan_of(lambda x: x.softmax(1), X)
        (kernel,) = backward_of(plan)
        assert [node.op for node in ir.topological(root.node for root in kernel.roots)].count("reduce") == 1

    def test_cost_no_launch_of_their_own(self) -> None:
        # The sum over rows that the weight's gradient needs does not fit the loss's kernel beside the one over columns.
        def loss(x: Tensor, w: Tensor) -> Tensor:
            return (x.softmax(1) * w).sum()

        plan, sizes = plan_of(loss, X, floats(4))
        assert len(plan.forward) == 1
        Reference(loss, X, floats(4)).check_plan(plan, sizes)


def _centred(compared: Callable[[Tensor], Tensor]) -> Loss:
    return lambda x: compared(x - x.mean(0)).sum()


COMPARED: dict[str, Loss] = {
    "largest": _centred(lambda v: v.amax(0) * v.amax(1)[:, None]),
    "least": _centred(lambda v: v.amin(1)[:, None] * v.amin(0)),
    "places": _centred(lambda v: v.amax(0) * v.argmax(1)[:, None]),
    "before and after a product": _centred(
        lambda v: (v @ v.t()).mean(1) * torch.where(v == v.amax(1, keepdim=True), v, 0).sum(1)
    ),
}


class TestLaunches:
    def test_every_result_is_stored_once(self) -> None:
        plan, _ = plan_of(nn.TripletMarginLoss(), *(floats(3, 4, seed=k) for k in range(3)))
        stored = [root.buffer.name for kernel in plan.forward for root in kernel.roots]
        assert sorted(stored) == sorted(["loss", *(buffer.name for buffer in plan.saved)])
        gradients = [root.buffer.name for kernel in backward_of(plan) for root in kernel.roots]
        assert gradients == ["grad_anchor", "grad_positive", "grad_negative"]

    def test_a_matrix_is_stored_once_for_itself_and_its_transpose(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            return (x.exp() @ y.exp().t()).pow(3).mean()

        plan, sizes = plan_of(loss, X, floats(3, 4, seed=1))
        for steps, count in (
            (plan.forward, 2),
            (backward_of(plan), 1),
        ):  # factors; a gradient
            roots = [root for step in steps if isinstance(step, Kernel) for root in step.roots]
            operands = [root for root in roots if root.buffer.role == "scratch"]
            assert len(operands) == count
            assert all(tuple(root.buffer.strides)[-1] == 1 for root in operands)
        Reference(loss, X, floats(3, 4, seed=1)).check_plan(plan, sizes)

    @pytest.mark.usefixtures("large")
    def test_what_is_kept_serves_the_kernels_that_follow_too(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            return (x.logsumexp(1) - y.logsumexp(1)).clamp(min=0).sum()

        args = X, floats(3, 5, seed=1)
        plan, sizes = plan_of(loss, *args)
        roots = [root.node for kernel in plan.forward for root in kernel.roots]
        assert len(roots) == len(set(roots))
        Reference(loss, *args).check_plan(plan, sizes)

    @pytest.mark.usefixtures("large")
    def test_statistics_are_stored_where_they_are_computed(self) -> None:
        """Not before a step of torch that they do not wait for, which would take a launch."""

        def loss(x: Tensor, labels: Tensor) -> Tensor:
            unit = x / x.norm(dim=1, keepdim=True)
            alike = labels.unsqueeze(1) == labels
            chosen = torch.where(alike, (unit @ unit.t()).log_softmax(1), 0)
            return (chosen.sum(1) / alike.sum(1)).sum()

        plan, sizes = plan_of(loss, X, LABELS)
        first, step, _, second = plan.forward
        assert isinstance(first, Kernel) and isinstance(second, Kernel) and isinstance(step, TorchStep)
        kept = {buffer for buffer in plan.saved if buffer.role == "saved"}
        assert len(kept & {root.buffer for root in second.roots}) >= 3
        Reference(loss, X, LABELS).check_plan(plan, sizes)

    @pytest.mark.usefixtures("large")
    @pytest.mark.parametrize("after", [lambda own: own, torch.exp], ids=["for forward", "for backward too"])
    def test_what_would_be_read_again_is_reduced_before(self, after: Any) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            own = after((x.exp() * y.exp()).sum(1))
            return (own - (x.exp() @ y.exp().t()).logsumexp(1)).sum()

        args = X, floats(3, 4, seed=1)
        plan, sizes = plan_of(loss, *args)
        first, last = plan.forward[0], plan.forward[-1]
        assert isinstance(first, Kernel) and isinstance(last, Kernel)
        own = [root.buffer for root in first.stores if len(root.buffer.shape) == 1]
        assert len(own) == 1 and own[0] in {load.attrs[0] for load in last.loads()}
        assert not {"x", "y"} & {load.attrs[0].name for load in last.loads()}
        assert own[0] not in {root.node.attrs[0] for root in last.roots if root.node.op == "load"}  # no copy
        Reference(loss, *args).check_plan(plan, sizes)

    def test_what_a_step_is_given_all_over_is_read_once(self) -> None:
        """What torch reads of an expanded number is in memory along axes that the number does not have."""

        def loss(x: Tensor) -> Tensor:
            least = x.amin(-1, keepdim=True)
            return torch.nextafter(least, x).sum() + least

        plan, sizes = plan_of(loss, floats(4, grad=False))  # not all versions of torch have a gradient of it
        stored, step, last = plan.forward
        assert isinstance(stored, Kernel) and isinstance(step, TorchStep) and isinstance(last, Kernel)
        assert {load.attrs[0].name for load in last.loads()} == {*step.writes, stored.roots[0].buffer.name}
        Reference(loss, floats(4, grad=False)).check_plan(plan, sizes)

    def test_what_is_stored_on_the_way_is_what_backward_wants(self) -> None:
        def loss(x: Tensor, y: Tensor) -> Tensor:
            return torch.where(x.sum() > 0, x.softmax(1).softmax(0), y).square().mean()

        args = floats(300, 400), floats(300, 400, seed=1)
        plan, sizes = plan_of(loss, *args)
        stored = {root.buffer for kernel in plan.forward if isinstance(kernel, Kernel) for root in kernel.roots}
        assert stored == {*plan.saved, *plan.outputs}
        Reference(loss, *args).check_plan(plan, sizes)

    @pytest.mark.usefixtures("large")
    def test_results_that_do_not_fit_together_get_a_part_each(self) -> None:
        def loss(x: Tensor) -> Any:
            return x.sum(1), x.sum(0), x.exp().sum(1)

        plan, sizes = plan_of(loss, X)
        (kernel,) = plan.forward
        assert isinstance(kernel, Kernel)
        assert [root.buffer.name for root in kernel.roots] == ["loss_0", "loss_2", "loss_1"]
        stored = [[root.buffer.name for root in part.roots] for part in kernel.parts]
        assert stored == [["loss_0", "loss_2"], ["loss_1"]]
        assert len({each.name for each in (kernel, *kernel.parts)}) == 3
        Reference(loss, X).check_plan(plan, sizes)

    @pytest.mark.parametrize(
        "loss",
        [
            lambda a, b, c: a.exp().mean() + b.abs().mean() + c.pow(2).sum(),
            lambda a, b, c: a.logsumexp(1).mean() + b.softmax(1).sum(0).log().sum() + c.mean(),
            lambda a, b, c: (a.amax(1).mean() * b.sum()).log() + (c.sum(1) - c.sum()).pow(2).mean(),
            lambda a, b, c: (a.exp(), b.exp().sum(1), c.mean()),
        ],
    )
    @pytest.mark.parametrize("limit", [1, autogen.scheduling.launches.kernel.MAX_IN_ONE_PROGRAM])
    def test_tensors_of_several_sizes_are_not_walked_for_each_other(
        self, loss: Loss, limit: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", limit)
        plan, _ = plan_of(loss, floats(300, 200), floats(150, 310), floats(70, 500))
        for kernel in (*plan.forward, *backward_of(plan)):
            assert isinstance(kernel, Kernel)
            walked = {*kernel.rows, *kernel.kept, *kernel.columns}
            of_tensors = [load.axes for load in kernel.loads()] + [root.index_axes for root in kernel.stores]
            assert any(walked <= axes for axes in of_tensors)

    @pytest.mark.parametrize("name", COMPARED)
    def test_sums_of_what_is_compared_with_its_extreme_are_computed_once(self, name: str) -> None:
        x = floats(130, 131)
        plan, sizes = plan_of(COMPARED[name], x)
        steps = (*plan.forward, *backward_of(plan))
        computed = [ir.topological(root.node for root in k.roots) for k in steps if isinstance(k, Kernel)]
        means = [node for order in computed for node in order if node.op == "reduce" and node.args[0].op == "load"]
        assert len([node for node in means if node.args[0].attrs[0].name == "x"]) == 1
        Reference(COMPARED[name], x).check_plan(plan, sizes)

    @pytest.mark.parametrize(
        ("loss", "shapes"),
        [
            (lambda x: x[1:] - x.mean(), [(20000,)]),
            (lambda x: torch.cat([x, x]) * x.mean(), [(20000,)]),
            (lambda x: x[:, 1:] - x.mean(1, keepdim=True), [(50, 2000)]),
            (lambda x, y: x + y.sum(), [(30000,), (300,)]),
        ],
        ids=["a slice", "a join", "slices of rows", "two tensors"],
    )
    def test_no_program_walks_again_what_its_rows_have_nothing_to_do_with(
        self, loss: Loss, shapes: list[tuple[int, ...]]
    ) -> None:
        args = [floats(*shape) for shape in shapes]
        plan, sizes = plan_of(loss, *args)
        kernels = [step for step in (*plan.forward, *backward_of(plan)) if isinstance(step, Kernel)]
        assert not any(kernel.walks_again for kernel in kernels)
        Reference(loss, *args).check_plan(plan, sizes)

    def test_few_columns_are_walked_again_rather_than_in_a_launch_of_their_own(self) -> None:
        (kernel,) = plan_of(lambda x, y: x + y.sum(), floats(30000, grad=False), floats(100, grad=False))[0].forward
        assert isinstance(kernel, Kernel) and kernel.walks_again
        (rows,), (columns,) = ([str(axis.size) for axis in axes] for axes in (kernel.rows, kernel.columns))
        assert kernel.holds({rows: 10**7, columns: 100})
        assert not kernel.holds({rows: 50000, columns: 50000})

    def test_a_scalar_is_finished_by_the_last_block_from_totals_alone(self) -> None:
        (kernel,) = plan_of(lambda x: x.exp().sum() / (x.sum() + 1), X.detach())[0].forward
        (final,) = kernel.finals
        assert kernel.stores == () and len(kernel.totals) == 2

        def reads_elements(node: Node) -> bool:
            return node not in kernel.totals and (bool(node.axes) or any(map(reads_elements, node.args)))

        assert not reads_elements(final.node)

    def test_upstream_gradients_may_lie_in_memory_as_they_like(self) -> None:
        plan, _ = plan_of(nn.MSELoss(reduction="none"), X, PROBABILITY)
        (plain,) = backward_of(plan)
        (upstream,) = {node.attrs[0] for node in plain.loads() if node.attrs[0].role == "upstream"}
        expanded = replace(upstream, strides=(sympy.S.Zero, sympy.S.Zero))
        (kernel,) = backward_of(plan, {upstream.name: expanded})
        assert expanded in {node.attrs[0] for node in kernel.loads()}
        assert upstream not in {node.attrs[0] for node in kernel.loads()}

    def test_upstream_gradients_in_another_layout_are_still_read_where_they_were(self) -> None:
        plan, _ = plan_of(lambda x: x[1:] * x[:-1], floats(4))  # the gradient of a slice is read at a computed place
        upstream = {n.attrs[0] for k in backward_of(plan) for n in k.loads() if n.attrs[0].role == "upstream"}
        (kernel,) = backward_of(plan, {each.name: replace(each, strides=(sympy.Integer(2),)) for each in upstream})
        verify(root.node for root in kernel.roots)
        loads = [node for node in kernel.loads() if node.attrs[0].role == "upstream"]
        assert all(len(node.args) == 1 for node in loads)


CUT: dict[str, tuple[Loss, tuple[Any, ...], int, str]] = {
    "two softmaxes": (lambda x: (x.softmax(0) * x.softmax(1)).sum(), (X,), 2, "over different axes"),
    "rows of rows": (lambda x: x.logsumexp(2).logsumexp(1).sum(), (floats(2, 3, 4),), 2, "over different axes"),
    "the loss fed back": (lambda x: x.logsumexp(1) / x.logsumexp(1).sum(), (X,), 2, "over different axes"),
    "two sizes": (lambda x, y: x.sum() + y.sum(), (floats(3), floats(4)), 1, ""),
    "a product first": (lambda x: (x @ x.t()).relu().sum(), (X,), 1, ""),
    "a product in the middle": (lambda x: (x.exp() @ x.exp().t()).relu().sum(), (X,), 2, "torch runs mm"),
}


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all sizes were too large for one program."""
    monkeypatch.setattr(autogen.scheduling.launches.kernel, "MAX_IN_ONE_PROGRAM", 0)


@pytest.mark.parametrize("name", CUT)
def test_what_is_small_is_one_program(name: str) -> None:
    loss, args, _, reason = CUT[name]
    if reason.startswith("torch"):
        return
    plan, sizes = plan_of(loss, *args)
    assert len([step for step in plan.forward if isinstance(step, Kernel)]) == 1
    Reference(loss, *args).check_plan(plan, sizes)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", CUT)
def test_what_does_not_fit_is_cut(name: str) -> None:
    loss, args, launches, reason = CUT[name]
    plan, sizes = plan_of(loss, *args)
    kernels = [step for step in plan.forward if isinstance(step, Kernel)]
    assert len(kernels) == launches
    assert reason in kernels[-1].cut and not kernels[0].cut
    Reference(loss, *args).check_plan(plan, sizes)


def test_what_is_asked_for_again_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x.sum() > 0, x.softmax(1).softmax(0), y).square().mean()

    compiled: Counter[str] = Counter()

    def counted(text: str, *args: str) -> Any:
        compiled[text] += 1
        return compile(text, *args)

    program, sizes = program_of(loss, floats(300, 400), floats(300, 400, seed=1))
    evaluator_of.cache_clear()
    monkeypatch.setattr(autogen.ir.sizes, "compile", counted, raising=False)
    schedule(program, "loss", sizes, training=True)
    assert max(compiled.values()) == 1


def test_random_draws_keep_their_order() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        first = torch.bernoulli(x.sigmoid() @ x.sigmoid().t())
        return (first * torch.rand(3, 3)).sum()

    plan, _ = plan_of(loss, floats(3, 3))
    assert [step.name for step in plan.forward if isinstance(step, TorchStep) and step.is_random] == [
        "bernoulli",
        "rand",
    ]


def test_every_pass_is_followed_by_the_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    program, sizes = program_of(nn.CrossEntropyLoss(), X, LABELS)

    def breaks_loads(node: Node) -> Node:
        if node.op != "load":
            return node
        broken = Node()
        broken.op, broken.args, broken.dtype, broken.axes, broken.reduces = "load", (), node.dtype, node.axes, False
        broken.attrs = (node.attrs[0], (*node.attrs[1], sympy.S.Zero))
        return broken

    monkeypatch.setattr(simplify, "PASSES", (breaks_loads,))
    with pytest.raises(AssertionError, match="rank of the index"):
        schedule(program, "loss", sizes, training=True)


def test_a_plan_does_not_depend_on_when_it_is_made() -> None:
    def text(plan: Plan) -> list[str]:
        return [ir.format_nodes(root.node for root in k.roots) for k in (*plan.forward, *backward_of(plan))]

    calls = [plan_of(nn.TripletMarginLoss(), *(floats(3, 4, seed=k) for k in range(3)))[0] for _ in range(2)]
    assert text(calls[0]) == text(calls[1])


def test_numbers_names_that_are_taken() -> None:
    assert unique("sum", ["sum_2"]) == "sum"
    assert unique("sum", ["sum", "sum_2"]) == "sum_3"


def test_no_sum_is_taken_twice() -> None:
    weight, labels = torch.rand(10), torch.arange(6)
    loss = nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    (kernel,) = plan_of(loss, torch.randn(6, 10, requires_grad=True), labels)[0].forward
    assert isinstance(kernel, Kernel)
    assert len(kernel.totals) == 3  # of the labels' losses, of all classes', and of the labels' weights
