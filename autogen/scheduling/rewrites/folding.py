"""Fold arithmetic that does nothing, and infer facts about a value from its form."""

from __future__ import annotations

import math

import sympy
import torch

from autogen import ir
from autogen.ir import Node, apply, const
from autogen.ir.ops import OPS
from autogen.lowering.entries import is_below, spelled_out

_OPPOSITE = {"eq": "ne", "ne": "eq"}  # nan makes no other pair opposites


def number_of(node: Node) -> float | None:
    """The number that a node is, if it is one."""
    return node.attrs[0] if node.op == "const" else None


def fold(node: Node) -> Node:
    """Arithmetic that does nothing: `x * 1`, `x / 1`, `x - 0`, `-(-x)`, `a + -b`, a choice already made.

    `1 - sigmoid(-x)` is `sigmoid(x)`, in which nothing cancels; `1 - sigmoid(x)` stays, which takes one instruction.

    `x + 0` goes where it turns no -0.0 into 0.0. `x * 0` stays: it may be nan.
    """
    args = node.args
    numbers = [number_of(arg) for arg in args]
    match node.op:
        case "add" if (term := _beside_0(node)) is not None:
            return term
        case "add" if args[0] is args[1] and node.dtype.is_floating_point:  # as in the gradient of a square
            return fold(apply("mul", args[0], const(2, node.dtype)))
        case "add" if 0 in numbers and (choice := args[1 - numbers.index(0)]).op == "where" and _hasnumber_of(choice):
            sums = (fold(apply("add", arg, const(0, node.dtype))) for arg in choice.args[1:])
            return fold(apply("where", choice.args[0], *sums))
        case "sub" if numbers[1] == 0:  # and `x - -0.0` is `x + 0.0`
            return fold(apply("add", args[0], const(-numbers[1], node.dtype)))
        case "sub" if numbers[0] == 1 and args[1].op == "sigmoid_neg":
            return apply("sigmoid", *args[1].args)
        case "add" if args[1].op == "neg":
            return fold(apply("sub", args[0], args[1].args[0]))
        case "add" if args[0].op == "neg":
            return fold(apply("sub", args[1], args[0].args[0]))
        case "sub" if args[1].op == "neg":
            return fold(apply("add", args[0], args[1].args[0]))
        case "mul" if 1 in numbers:
            return args[1 - numbers.index(1)]
        case "mul" if -1 in numbers:
            return fold(apply("neg", args[1 - numbers.index(-1)]))
        case "div" if numbers[1] == 1:
            return args[0]
        case "sigmoid" | "log_sigmoid" if args[0].op == "neg":  # which shares its exponential with that of `x`
            return apply(f"{node.op}_neg", args[0].args[0])
        case "floor_divide" | "fmod" | "remainder" if numbers[1] == 0 and not node.dtype.is_floating_point:
            return const(0, node.dtype)  # of no elements, as it would be an error
        case "mul" | "div" if any(arg.op == "neg" for arg in args):  # the sign goes outside, where two cancel
            bare = [arg.args[0] if arg.op == "neg" else arg for arg in args]
            product = fold(apply(node.op, *bare))
            return product if all(arg.op == "neg" for arg in args) else fold(apply("neg", product))
        case "neg" if args[0].op == "neg":
            return args[0].args[0]
        case "neg" if numbers[0] is not None:
            return const(-numbers[0], node.dtype)
        case "where" if numbers[0] is not None:
            return args[1] if numbers[0] else args[2]
        case "where" if args[1] is args[2]:
            return args[1]
        case "where" if _is_turned(node):  # a label that is not ignored is asked for as one that is
            return fold(apply("where", apply(_OPPOSITE[args[0].op], *args[0].args), args[2], args[1]))
        case "where" if (value := _chosen_in(args[0], args[1])) is not args[1]:
            return fold(apply("where", args[0], value, args[2]))
        case "where" if numbers[1:] == [1, 0] and not _may_be_negative_0(args[2]):
            return ir.cast(args[0], node.dtype)
        case "logical_and" if True in numbers:
            return args[1 - numbers.index(True)]
        case "logical_or" if False in numbers:
            return args[1 - numbers.index(False)]
        case "logical_not" | "bitwise_not" if args[0].op in _OPPOSITE and node.dtype == torch.bool:
            return apply(_OPPOSITE[args[0].op], *args[0].args)
        case "logical_not" if args[0].op == "logical_not":
            return args[0].args[0]
        case "add" if _cancels(*args):
            return args[1].args[0]
        case "add" if _cancels(*args[::-1]):
            return args[0].args[0]
        case "lt" | "ge" if args[0].op == "index" and args[1].op in ("index", "const"):
            below = is_below(args[0].attrs[0], sympy.sympify(args[1].attrs[0]))
            return node if isinstance(below, Node) else const(below == (node.op == "lt"), torch.bool)
        case "lt" | "ge" if args[0].op == "search" and numbers[1] == 0:
            return const(node.op == "ge", torch.bool)
        case "load" if any(arg.op in ("index", "const") for arg in args):
            return spelled_out(node)
        case "round_to_float16" | "round_to_bfloat16" if _is_rounded(args[0], node.op):
            return args[0]
    if node.op in OPS and None not in numbers:
        # Rounded as the kernel would round it.
        given = zip(numbers, args, strict=True)
        values = [torch.tensor(number, dtype=arg.dtype, device="cpu") for number, arg in given]
        return const(OPS[node.op].twin(*values).item(), node.dtype)
    return node


def _cancels(a: Node, b: Node) -> bool:
    """Whether `b` is something less `a`, in integers."""
    return b.op == "sub" and b.args[1] is a and not a.dtype.is_floating_point


def _is_turned(choice: Node) -> bool:
    """Whether a number is chosen where integers are equal, or different, and what is computed elsewhere."""
    condition, number, other = choice.args
    return (
        condition.op in _OPPOSITE
        and not condition.args[0].dtype.is_floating_point
        and (number.op == "const" and other.op != "const")
    )


def _chosen_in(condition: Node, value: Node) -> Node:
    """A value where a condition holds: if it is chosen by the same, or is read at a place that is."""
    if value.op == "where" and value.args[0] is condition:
        return value.args[1]
    return ir.rebuild(value, [_chosen_in(condition, arg) for arg in value.args]) if value.op == "load" else value


def _beside_0(node: Node) -> Node | None:
    """What a zero is added to that turns no -0.0 into 0.0; None if there is no such zero."""
    for term, zero in (node.args, node.args[::-1]):
        if number_of(zero) == 0 and (_may_be_negative_0(zero) or not _may_be_negative_0(term)):
            return term
    return None


def _may_be_negative_0(node: Node) -> bool:
    """Whether a value may be -0.0, as far as can be seen."""
    if not node.dtype.is_floating_point:
        return False
    match node.op:
        case "const":
            return node.attrs[0] == 0 and math.copysign(1, node.attrs[0]) < 0
        case "cast":
            return _may_be_negative_0(node.args[0])
        case "sub":  # of 0.0 and 0.0, it is 0.0
            return node.args[0].op != "const" or _may_be_negative_0(node.args[0])
        case "add":  # a sum is only of two
            return all(map(_may_be_negative_0, node.args))
        case "reduce" if node.attrs[0] == "sum":
            return False
        case "mul" if node.args[0] is node.args[1]:
            return False
    return node.op not in ("abs", "exp")


def _hasnumber_of(choice: Node) -> bool:
    return any(arg.op == "const" for arg in choice.args)


def _is_rounded(node: Node, rounding: str) -> bool:
    """Whether the op `rounding` leaves a value as it is, as far as can be seen."""
    choices = node.args[1:] if node.op == "where" else (node,)
    return all(_fits(each, rounding) for each in choices)


def _fits(node: Node, rounding: str) -> bool:
    while node.op == "cast" and node.args[0].dtype not in ir.HELD_BY_HALVES:
        node = node.args[0]
    if node.op == "const":
        value = torch.tensor(float(node.attrs[0]), device="cpu")
        return bool(OPS[rounding].twin(value) == value)
    is_stored_so = node.op == "load" and ir.ROUNDINGS.get(node.attrs[0].dtype) == rounding
    return is_stored_so or node.op == rounding or node.op == "cast"


def is_size(node: Node) -> bool:
    """Whether a node is a size, or a product of sizes."""
    return node.op == "cast" and node.args[0].op == "index" and not node.axes


def is_at_least_zero(node: Node) -> bool:
    """Whether a value is at least 0 by its form."""
    match node.op:
        case "abs" | "sqrt" | "relu" | "exp" | "exp_nonpositive" | "exp_summand" | "exp_half":
            return True
        case "const":
            return bool(node.attrs[0] >= 0)
        case "cast":
            return node.args[0].dtype == torch.bool or is_at_least_zero(node.args[0])
        case "where":
            return all(map(is_at_least_zero, node.args[1:]))
        case "mul" if node.args[0] is node.args[1]:
            return True
        case "mul" | "div" | "add":
            return all(map(is_at_least_zero, node.args))
    return False
