"""Row X1 of the features: the graph that torch captures of a loss, and what of it has no kernel."""

from __future__ import annotations

import copy
import json
import pickle
from html.parser import HTMLParser

import pytest
import torch
from torch import Tensor

import autogen
from autogen import autogen_loss, explain
from autogen.report import Report, html

X = torch.linspace(-2, 2, 12).reshape(3, 4).requires_grad_()
T = torch.zeros(3, 4)


def hardest(input: Tensor, target: Tensor) -> Tensor:
    return (input - target).abs().flatten().topk(2).values.mean()


@pytest.fixture(scope="module")
def report() -> Report:
    return explain(autogen_loss(hardest), X, T)


def test_x1_graph_is_the_joint_graph_and_unsupported_nodes_are_listed(report: Report) -> None:
    assert isinstance(report.graph, torch.fx.GraphModule) and report.graphs == (report.graph,)
    targets = {str(node.target) for node in report.graph.graph.nodes}
    assert {"aten.topk.default", "aten.mean.default", "aten.sgn.default"} <= targets, "forward and backward in one"
    assert "torch.ops.aten.topk" in report.graph.print_readable(print_output=False)
    assert report.path == "partial" and report.forward is not None and report.backward is not None
    (step,) = report.forward.torch_steps
    assert step.startswith("topk, at ") and ".topk(2).values" in step and report.backward.torch_steps == ()


def test_x1_graph_computes_the_loss_and_its_gradient(report: Report) -> None:
    assert report.graph is not None
    tensors = iter((X, T))
    placeholders = [node for node in report.graph.graph.nodes if node.op == "placeholder"]
    values = [node.meta["val"] for node in placeholders if not node.name.startswith("tangents")]
    primals = [next(tensors) if isinstance(each, Tensor) else int(each) for each in values]
    results, gradients = report.graph(primals, [torch.ones(())])
    loss = hardest(X, T)
    (gradient,) = torch.autograd.grad(loss, X)
    assert torch.equal(results[0], loss) and torch.equal(next(g for g in gradients if g is not None), gradient)


def test_x1_each_part_of_a_loss_has_a_graph() -> None:
    def clipped(input: Tensor) -> Tensor:
        error = input.abs()
        if error.max() > 1:
            error = error.clamp(max=1)
        return error.mean()

    report = explain(autogen_loss(clipped), X)
    assert len(report.breaks) == 1 and len(report.graphs) == 2
    targets = [{str(node.target) for node in graph.graph.nodes} for graph in report.graphs]
    assert "aten.clamp.default" in targets[1] - targets[0]


def test_x1_a_loss_that_torch_runs_has_its_graph_with_the_node_that_has_no_kernel() -> None:
    report = explain(autogen_loss(lambda x: x @ x.T), X.detach())
    assert report.path == "eager" and "generated for mm, at" in report.reason and "x @ x.T" in report.reason
    assert report.graph is not None
    assert "aten.mm.default" in {str(node.target) for node in report.graph.graph.nodes}


def test_x1_a_call_that_torch_does_not_capture_has_none() -> None:
    with autogen.policy("disabled"):
        assert explain(autogen_loss(hardest), X, T).graph is None


def test_x1_graphs_are_neither_compared_printed_nor_pickled(report: Report) -> None:
    again = pickle.loads(pickle.dumps(report))
    assert again == report and again.graphs == () and copy.deepcopy(report) == report
    assert "graph" not in repr(report) and "aten" not in str(report)


def test_x1_a_report_is_plain_data(report: Report) -> None:
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["loss"], data["path"], data["reason"]) == ("hardest", "partial", report.reason)
    assert report.forward is not None
    assert data["forward"]["kernels"] == list(report.forward.kernels) and data["forward"]["launches"] == 2
    assert data["forward"]["source"] == report.forward.source and "aten.topk" in data["graphs"][0]


class _Page(HTMLParser):
    """What is open, and what has been read."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loaded += [name for name, _ in attrs if name in ("src", "href", "class")]
        if tag != "br" and tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_x1_notebooks_show_a_report(report: Report) -> None:
    assert report.forward is not None
    for text in (report._repr_html_(), html.page(report.to_dict())):
        page = _Page()
        page.feed(text)
        assert not page.open and not page.loaded, "it is whole, and needs nothing beside it"
        assert page.seen.count("details") == page.seen.count("pre") == 3
        assert report.forward.source.strip("\n") in page.text, "the source is all there, whatever its colours"
        assert "script" not in page.seen and '<span style="color: #' in text


def test_x1_what_a_report_quotes_is_escaped() -> None:
    text = Report("<b>", "eager", "a < b & c", breaks=("<script>",))._repr_html_()
    assert "&lt;b&gt;" in text and "a &lt; b &amp; c" in text and "<script" not in text
