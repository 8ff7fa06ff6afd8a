"""Batches of samples of many lengths: they hold what the samples did, and each tensor moves in one copy."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import autogen
from autogen import DataError
from autogen.compat import jagged_extras, pytree
from autogen.data import Padded, batches, padded_collate, ragged_collate, to_device


class Target(NamedTuple):
    boxes: Tensor
    labels: Tensor
    crowd: bool


@dataclasses.dataclass(frozen=True)
class Face:
    image: Tensor
    boxes: Tensor


torch.export.register_dataclass(Face)


def sample(number: int, length: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(number)
    boxes = torch.rand(length, 4, generator=generator)
    labels = torch.randint(9, (length,), generator=generator, dtype=torch.uint8)
    image = torch.rand(3, 2, 2, generator=generator)
    return {
        "image": image,
        "target": Target(boxes, labels, crowd=length > 2),
        "pair": (float(number), [torch.tensor(number), f"face {number}"]),
    }


LENGTHS = [[2, 0, 5, 1], [3, 3], [0, 0, 0], [4]]
FIELDS = ["target"]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("way", [ragged_collate, padded_collate])
def test_a_batch_is_taken_apart_into_its_samples(way: Callable[..., Any], lengths: list[int]) -> None:
    samples = [sample(k, length) for k, length in enumerate(lengths)]
    batch = way(samples, fields=FIELDS)
    assert type(batch) is dict and type(batch["target"]) is Target and type(batch["pair"]) is tuple
    boxes, labels, crowd = batch["target"]
    if way is ragged_collate:
        assert boxes.layout is labels.layout is torch.jagged
        assert boxes.values().shape == (sum(lengths), 4) and labels.offsets() is boxes.offsets()
    else:
        assert type(boxes) is Padded and boxes.values.shape == (len(lengths), max(lengths), 4)
        assert boxes.lengths.tolist() == lengths
    for field, found in (("boxes", boxes.unbind()), ("labels", labels.unbind())):
        expected = [getattr(each["target"], field) for each in samples]
        assert [each.dtype for each in found] == [each.dtype for each in expected]
        assert [each.tolist() for each in found] == [each.tolist() for each in expected]
    assert crowd.tolist() == [length > 2 for length in lengths]
    torch.testing.assert_close(batch["image"], torch.stack([each["image"] for each in samples]), rtol=0, atol=0)
    numbers, (tensors, texts) = batch["pair"]
    assert numbers.tolist() == tensors.tolist() == [*range(len(lengths))] and numbers.dtype == torch.float64
    assert texts == [f"face {k}" for k in range(len(lengths))]


def test_without_names_all_that_has_a_length_is_of_many() -> None:
    alike = [torch.ones(2, 4), torch.zeros(2, 4)]
    assert ragged_collate(alike).layout is torch.jagged  # although these could be stacked
    assert padded_collate(alike).lengths.tolist() == [2, 2]
    batch = ragged_collate([(torch.ones(2), 3, np.zeros((k, 2), np.float32)) for k in range(3)])
    assert type(batch) is tuple and batch[0].layout is batch[2].layout is torch.jagged and batch[1].tolist() == [3] * 3
    assert batch[2].values().shape == (3, 2) and batch[2].dtype == torch.float32


@pytest.mark.parametrize("name", [1, "1", "1.boxes"])
def test_fields_are_named_by_places(name: str | int) -> None:
    samples = [(torch.ones(2, 2), OrderedDict(boxes=torch.ones(k, 4), area=torch.ones(()))) for k in (1, 2)]
    image, target = ragged_collate(samples, fields=[name])
    assert image.shape == (2, 2, 2) and type(target) is OrderedDict
    assert target["boxes"].layout is torch.jagged and target["area"].shape == (2,)


def test_dataclasses_known_to_torch() -> None:
    faces = [Face(torch.ones(3), torch.ones(k, 4)) for k in (2, 1)]
    batch = padded_collate(faces, fields=["boxes"])
    assert type(batch) is Face and batch.boxes.values.shape == (2, 2, 4) and batch.image.shape == (2, 3)


def test_padding() -> None:
    tensors = [torch.ones(2, 3, dtype=torch.int16), torch.ones(0, 3, dtype=torch.int16)]
    values, lengths = padded_collate(tensors, length=4, value=-1)
    assert values.dtype == torch.int16 and values[:, :, 0].tolist() == [[1, 1, -1, -1], [-1] * 4]
    assert lengths.dtype == torch.int64
    with pytest.raises(DataError, match=r"^the sample has 2 rows in sample 0, and is padded to 1\n"):
        padded_collate(tensors, length=1)


def wrong() -> Iterator[tuple[list[Any], Any, str]]:
    """Samples from which there is no batch, the fields of many lengths, and what is said of them."""
    a = torch.ones(2, 4)
    yield [], None, "there are no samples"
    yield [{"a": a}, {"a": a.double()}], None, "field 'a' has the dtype torch.float64 in sample 1, and torch.float32 in"
    yield [{"a": a}, {"a": a[0]}], ["a"], "field 'a' has the number of dimensions 1 in sample 1, and 2 in sample 0"
    yield [{"a": a}, {"a": a[:, :3]}], ["a"], "field 'a' has the trailing shape (3,) in sample 1, and (4,) in sample 0"
    yield [(a, a), (a, a[:1])], [0], "field '1' has the shape (1, 4) in sample 1, and (2, 4) in sample 0"
    yield [(a, a), (a, a.half())], [0], "field '1' has the dtype torch.float16 in sample 1, and torch.float32 in sample"
    yield [{"n": 1}, {"n": 1.5}], None, "field 'n' has the type float in sample 1, and int in sample 0"
    yield [{"n": a}, {"n": 1.5}], None, "field 'n' has the type float in sample 1, and Tensor in sample 0"
    yield [{"a": a}, {"b": a}], None, "sample 1 is not built as sample 0 is: Node keys mismatch; missing key(s): {'a'}"
    yield [[a], [a, a]], None, "sample 1 is not built as sample 0 is: Node arity mismatch"
    yield [{"a": a}], ["boxes"], "no field is named 'boxes'"
    yield [{"a": None}], None, "field 'a' is a NoneType"


@pytest.mark.parametrize(("samples", "fields", "said"), [*wrong()], ids=[said for *_, said in wrong()])
@pytest.mark.parametrize("way", [ragged_collate, padded_collate])
def test_samples_without_a_batch(way: Callable[..., Any], samples: list[Any], fields: Any, said: str) -> None:
    with pytest.raises(DataError) as raised:
        way(samples, fields=fields)
    assert raised.value.reason.startswith(said) and raised.value.remedy


def test_a_field_that_is_not_named_says_how() -> None:
    with pytest.raises(DataError, match="Add 'boxes' to fields, if it is its length that differs"):
        ragged_collate([{"boxes": torch.ones(k, 4)} for k in (1, 2)], fields=[])


@pytest.mark.parametrize("way", [ragged_collate, padded_collate])
def test_workers_send_batches(way: Callable[..., Any]) -> None:
    """Two processes make them; what arrives has kept its offsets, which the jagged fields share, and its types."""
    samples = [sample(k, length) for k, length in enumerate([2, 0, 5, 1, 3, 3])]
    loader = DataLoader(samples, 2, num_workers=2, collate_fn=partial(way, fields=FIELDS))
    for first, batch in zip(range(0, 6, 2), loader, strict=True):
        target = batch["target"]
        assert type(target) is Target and type(batch["pair"]) is tuple
        if way is ragged_collate:
            assert target.labels.offsets() is target.boxes.offsets()
            (target.boxes * target.labels.unsqueeze(-1)).values()
        for field in ("boxes", "labels"):
            expected = [getattr(each["target"], field).tolist() for each in samples[first : first + 2]]
            assert [each.tolist() for each in getattr(target, field).unbind()] == expected


class Copies(TorchDispatchMode):
    """What is copied from one device to another, and whether the host may go on meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, ...]] = []
        self.waited = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        result = func(*args, **kwargs)
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            self.found.append(tuple(args[0].shape))
            self.waited |= not kwargs.get("non_blocking")
        return result


def copies(batch: Any) -> tuple[Any, list[tuple[int, ...]]]:
    with Copies() as found:
        moved = to_device(batch, "meta")
    assert not found.waited
    return moved, found.found


def test_each_field_is_one_copy() -> None:
    samples = [sample(k, k % 3) for k in range(64)]
    _, padded = copies(padded_collate(samples, fields=FIELDS))
    # of the image, the boxes, the labels and the lengths of each, whether it is a crowd, and two numbers
    assert len(padded) == 1 + 2 + 2 + 1 + 2
    batch, jagged = copies(ragged_collate(samples, fields=FIELDS))
    assert len(jagged) == 1 + 2 + 1 + 1 + 2  # values of each, and the offsets of both
    boxes, labels, _ = batch["target"]
    assert boxes.device.type == "meta" and boxes.layout is torch.jagged and labels.offsets() is boxes.offsets()
    assert jagged_extras(boxes)["max_seqlen"] == 2 and batch["pair"][1][1][:2] == ["face 0", "face 1"]


def test_jagged_tensors_stay_what_they_are() -> None:
    values = torch.rand(2, 5, 3).requires_grad_()
    offsets, lengths = torch.tensor([0, 2, 5]), torch.tensor([1, 2])
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets, lengths, jagged_dim=2, min_seqlen=1)
    moved, found = copies(jagged)
    assert sorted(found) == [(2,), (2, 5, 3), (3,)] and moved.requires_grad and moved.lengths().device.type == "meta"
    assert jagged_extras(moved) == {"jagged_dim": 2, "min_seqlen": 1, "max_seqlen": 2}
    assert to_device(jagged, "cpu") is jagged
    empty, _ = copies(autogen.ragged(torch.ones(0, 4), [0]))
    assert empty.shape[0] == 0 and jagged_extras(empty)["max_seqlen"] == 0


DTYPES = (torch.float32, torch.uint8, torch.float64, torch.bool, torch.bfloat16, torch.complex64, torch.int16)


def test_a_list_of_tensors_is_one_copy() -> None:
    shapes = ((3, 5), (), (0, 4), (7,), (1, 3, 2), (2,), (5, 1))
    tensors = [torch.randint(2, shape).to(dtype) for shape, dtype in zip(shapes, DTYPES, strict=True)]
    tensors.append(torch.rand(3, 4).t())
    moved, found = copies({"target": tensors, "one": [torch.ones(2)]})
    assert found == [(sum(each.nbytes for each in tensors),), (2,)]
    assert type(moved["target"]) is list
    assert [(each.dtype, each.shape) for each in moved["target"]] == [(each.dtype, each.shape) for each in tensors]


def test_values_of_a_packed_list() -> None:
    """There is no second device here that has values; so to the CPU, as if it were one."""
    tensors = [torch.randint(100, (k, 3)).to(dtype) for k, dtype in enumerate(DTYPES)]
    tensors += [torch.rand(3, 4).t(), torch.rand(2, 3, dtype=torch.complex64).conj(), torch.ones(3, 0)]
    tensors += [torch.tensor(2.5), torch.tensor(True), torch.rand(4)[:0], torch.rand(1, 3), torch.tensor(3.5)]
    move = batches._Move(torch.device("cpu"), False)
    for found, expected in zip(move._packed(tensors), tensors, strict=True):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        torch.testing.assert_close(found, expected.resolve_conj(), rtol=0, atol=0)


def test_what_is_not_packed() -> None:
    leaf = torch.ones(2).requires_grad_()
    moved, found = copies([leaf, torch.ones(3)])
    assert found == [(2,), (3,)] and moved[0].requires_grad
    same = torch.ones(3)
    moved, found = copies(({"a": same}, same))  # a tensor that occurs twice
    assert found == [(3,)] and moved[0]["a"] is moved[1]
    tensors = [torch.ones(2), torch.ones(3)]
    assert all(a is b for a, b in zip(to_device(tensors, "cpu"), tensors, strict=True))
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    moved, _ = copies((packed, None, "text", 3))
    assert moved[0].data.device.type == "meta" and moved[0].batch_sizes.device.type == "cpu"  # by its own `to`
    assert moved[1:] == (None, "text", 3)


def test_containers_keep_their_types() -> None:
    batch = (Face(torch.ones(1), torch.ones(2)), Target(torch.ones(1), torch.ones(1), True), OrderedDict(a=[1.0]))
    moved, found = copies(batch)
    assert [type(each) for each in moved] == [Face, Target, OrderedDict] and len(found) == 4
    assert pytree.tree_structure(moved) == pytree.tree_structure(batch)


def test_only_what_goes_to_a_gpu_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[tuple[int, ...]] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: pinned.append(tuple(self.shape)) or self)
    batch = {"a": torch.ones(3), "b": autogen.ragged(torch.ones(5), [0, 5])}
    to_device(batch, "meta")
    assert not pinned
    move = batches._Move(torch.device("meta"), True)
    move.pins = True
    move(batch)
    assert pinned == [(3,), (5,), (2,)]
