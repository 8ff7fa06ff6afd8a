"""Skip loads on which no result depends: rows of ignored labels, padding, and what a loss masks itself.

What is asked for by `where(condition, ..., 0)` alone may be anything where the condition does not hold. So may the
logits of a softmax that is multiplied by 0 there, if the row's maximum and sum are in memory: the product is 0, or nan
if the sum is, whatever the logits are. Hence eager's nan as the gradient of an ignored row that is not finite. The
gradient of a masked element is 0, whatever is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from autogen import ir
from autogen.ir import Node, apply, const
from autogen.scheduling.launches.kernel import Kernel
from autogen.scheduling.launches.running import is_shifted
from autogen.scheduling.rewrites.folding import fold

_NEVER: frozenset[Node] = frozenset()

PAYS = 8
"""Bytes that are read of an element, for each byte of its mask, if the mask is to be read first. A mask that is told by
where an element lies, as by a length, always pays, unless it leaves out one element of a row, as the label's.
"""


def with_conditions(kernel: Kernel, kept: Mapping[Node, Node], moved: Callable[[Node, Node], None]) -> Kernel:
    """A kernel with the conditions per row, or element, under which alone what it reads per element matters; what is
    subtracted in a softmax is infinite without, so that whatever is read, the exponential is 0. `kept` are the
    reductions that it reads from memory.
    """
    kernel = _selected(kernel, kept)
    own = [_conditions_of(each, kept) for each in kernel.parts or (kernel,)]
    above = {
        shifted: apply("sub", shifted.args[0], _unless(conditions[shifted.args[0]], shifted.args[1]))
        for conditions, softmaxes in own
        for shifted in softmaxes
        if shifted.args[0] in conditions
    }
    kernel = kernel.on(lambda nodes: ir.replace(nodes, above, moved)) if above else kernel
    found = [tuple(conditions.items()) for conditions, _ in own]
    if not kernel.parts:
        return replace(kernel, conditions=found[0])
    parts = (replace(part, conditions=each) for part, each in zip(kernel.parts, found, strict=True))
    return replace(kernel, parts=tuple(parts))


def _selected(kernel: Kernel, kept: Mapping[Node, Node]) -> Kernel:
    """A kernel that selects what it stores, where that is 0, or nan, unless a condition holds; an ignored label of a
    softmax is none.
    """
    if kernel.parts:
        return replace(kernel, parts=tuple(_selected(part, kept) for part in kernel.parts))
    order = ir.topological(root.node for root in kernel.stores)
    conditions = {node.args[0] for node in order if node.op == "where" and _is_known_first(node.args[0])}
    zero = _zero_unless(order, conditions) if conditions else {}
    has_softmax = any(_shifted_in_softmax(node, kept) is not None for node in order) if conditions else False
    stores = []
    for root in kernel.stores:
        for condition in sorted(zero.get(root.node) or (), key=lambda each: ir.format_nodes([each])):
            if not has_softmax or condition.op not in ("eq", "ne"):
                root = replace(root, node=apply("where", condition, root.node, const(0, root.node.dtype)))
        stores.append(root)
    return replace(kernel, stores=tuple(stores))


def _unless(condition: Node, largest: Node) -> Node:
    return apply("where", condition, largest, const(math.inf, largest.dtype))


def _conditions_of(kernel: Kernel, kept: Mapping[Node, Node]) -> tuple[dict[Node, Node], list[Node]]:
    """The loads per element that matter under a condition only, with it, and what the softmaxes are of."""
    roots = [*kernel.totals, *(root.node for root in kernel.roots)]
    order = ir.topological(roots)
    elements = [node for node in order if node.op == "load" and node.dtype.is_floating_point]
    conditions = {node.args[0] for node in order if node.op == "where" and _is_known_first(node.args[0])}
    if not any(condition.axes <= element.axes for condition in conditions for element in elements):
        return {}, []
    softmaxes = {node: shifted for node in order if (shifted := _shifted_in_softmax(node, kept)) is not None}
    asked = _asked(order, roots, conditions, softmaxes)
    found: dict[Node, Node] = {}
    for element in elements:
        of_rows = [condition for condition in asked[element] if condition.axes < element.axes and not element.args]
        if of_rows:
            found[element] = min(of_rows, key=lambda each: ir.format_nodes([each]))
    by_element: dict[Node, list[Node]] = {}
    for element in elements:
        for condition in asked[element] if element not in found else ():
            if condition.axes == element.axes:
                by_element.setdefault(condition, []).append(element)
    for condition, guarded in sorted(by_element.items(), key=lambda each: (-len(each[1]), ir.format_nodes([each[0]]))):
        if pays(condition, guarded):
            found |= {element: condition for element in guarded if element not in found}
    return found, list(softmaxes.values())


def pays(condition: Node, guarded: Sequence[Node]) -> bool:
    """Whether to know a condition per element before what it guards is read; see `PAYS`."""
    own = sum(load.attrs[0].dtype.itemsize for load in ir.loads([condition]) if load.axes == condition.axes)
    if own == 0 and condition.op == "ne":
        return False
    return sum(load.attrs[0].dtype.itemsize for load in guarded) >= PAYS * own


def _is_known_first(condition: Node) -> bool:
    """Whether a condition per row depends on nothing but inputs at the row's place: a label, or a mask."""
    below = ir.topological([condition])
    loads = [node for node in below if node.op == "load"]
    is_of_inputs = all(load.attrs[0].role == "input" and not load.args for load in loads)
    return bool(loads) and is_of_inputs and not any(node.op in ir.ALONG_AXES for node in below)


def _asked(
    order: Sequence[Node], roots: Sequence[Node], conditions: set[Node], softmaxes: Container[Node]
) -> dict[Node, frozenset[Node]]:
    """For each node the conditions of which all that depends on it asks."""
    zero = _zero_unless(order, conditions)
    asked = dict.fromkeys(roots, _NEVER)
    for node in reversed(order):
        for position, arg in enumerate(node.args):
            under = asked[node]
            if node.op in ir.ALONG_AXES:  # inside, these are other axes of the same names
                under = frozenset(each for each in under if each.axes.isdisjoint(node.attrs[1]))
            elif node.op == "where" and position > 0:
                under |= _branch(node, position, conditions)
            elif node.op == "mul" and arg in softmaxes:
                under |= zero.get(node.args[1 - position]) or _NEVER
            asked[arg] = asked[arg] & under if arg in asked else under
    return asked


def _branch(choice: Node, position: int, conditions: set[Node]) -> frozenset[Node]:
    """The condition under which a choice takes one of its arguments."""
    condition = choice.args[0]
    if condition not in conditions:
        return _NEVER
    return frozenset({condition if position == 1 else fold(apply("logical_not", condition))})


def _zero_unless(order: Sequence[Node], conditions: set[Node]) -> dict[Node, frozenset[Node] | None]:
    """For each node the conditions without which it is 0 or nan; None if it always is."""
    found: dict[Node, frozenset[Node] | None] = {}
    for node in order:
        own = [found.get(arg, _NEVER) for arg in node.args]
        if node.op == "where":
            own = [each if each is None else each | _branch(node, k, conditions) for k, each in enumerate(own) if k > 0]
        match node.op:
            case "const" if node.attrs[0] == 0:
                found[node] = None
            case "where" | "add" | "sub":
                found[node] = _both(*own)
            case "mul":
                found[node] = None if None in own else frozenset().union(*filter(None, own))
            case "neg" | "cast" | "div":
                found[node] = own[0]
            case _:
                found[node] = _NEVER
    return found


def _both(a: frozenset[Node] | None, b: frozenset[Node] | None) -> frozenset[Node] | None:
    return b if a is None else a if b is None else a & b


def _shifted_in_softmax(node: Node, kept: Mapping[Node, Node]) -> Node | None:
    """The `x - max(x)` in `exp(x - max(x)) * (1 / sum(exp(x - max(x))))`, the maximum and the sum kept."""
    for exponential, share in (node.args, node.args[::-1]) if node.op == "mul" else ():
        if (
            exponential.op not in ir.EXPONENTIALS
            or share.op != "reciprocal"
            or not is_shifted(exponential.args[0], kept)
        ):
            continue
        (shifted,) = exponential.args
        largest, total = kept.get(shifted.args[1]), kept.get(share.args[0])
        if largest is None or total is None or total.op != "reduce" or total.attrs != ("sum", largest.attrs[1]):
            continue
        (summand,) = total.args
        if summand.op in ir.EXPONENTIALS and summand.args[0] is apply("sub", shifted.args[0], largest):
            return shifted
    return None
