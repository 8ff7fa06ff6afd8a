"""InfoNCELoss and SupConLoss: cross entropies of cosines that are never in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch
import triton

from autogen.losses.handwritten._reduction import NO_SUM, result_dtype, sum_arguments
from autogen.losses.handwritten.contrastive_backward import contrastive_loss_backward
from autogen.losses.handwritten.contrastive_forward import contrastive_loss_forward
from autogen.runtime.direct import padded
from autogen.runtime.handwritten import IS_AUTOCAST, REQUIRED, Backward, Forward, Handwritten, Launch

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_MOST_DIMS = 256  # of an embedding: a program has the gradients of its own in registers
_LEAST = 16  # embeddings, and dimensions, of a product of tiles
_PROGRAMS = 128  # about as many as a large GPU has multiprocessors
_WARPS = 8  # that each of these has registers for


class Contrastive(Handwritten):
    """What the contrastive losses share: all but what their arguments are to the kernels."""

    backends = frozenset({"cuda"})  # on AMD's GPUs, tiles spill

    @abstractmethod
    def roles(self, arguments: Mapping[str, Any]) -> Mapping[str, str]:
        """The arguments that are `x`, `y`, `positive` and `label`, as far as there are such (see the kernels)."""

    @abstractmethod
    def misfit(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the shapes do not fit, which the loss then says."""

    def refuse(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """See `Handwritten.refuse`."""
        if not isinstance(arguments["temperature"], (int, float)):
            return "a temperature that is no number"
        if arguments["reduction"] not in ("none", "mean", "sum"):
            return "an unknown reduction"
        if self.misfit(arguments):
            return "shapes that do not fit"
        tensors = {role: arguments[name] for role, name in self.roles(arguments).items()}
        label = tensors.pop("label", None)
        x = tensors["x"]
        if x.dtype not in _FLOATS or any(each.dtype != x.dtype for each in tensors.values()):
            return "embeddings of " + " and ".join(sorted({str(each.dtype) for each in tensors.values()}))
        if not all(each.numel() for each in tensors.values()):
            return "no embeddings"
        if x.shape[-1] > _MOST_DIMS:
            return f"embeddings of more than {_MOST_DIMS} dimensions"
        if x.dim() == 3 and 1 not in x.shape[:2] and x.stride(0) != x.shape[1] * x.stride(1):
            return "views that do not follow each other in memory"
        if any(128 * _rows(each).stride(0) + 256 * each.stride(-1) >= 2**31 for each in tensors.values()):
            return "embeddings far apart in memory"
        if label is not None and (label.is_complex() or label.requires_grad):
            return f"labels of {label.dtype}"
        return None

    def results(self, arguments: Mapping[str, Any]) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """See `Handwritten.results`."""
        x = _rows(arguments[self.roles(arguments)["x"]])
        shape = x.shape[:1] if arguments["reduction"] == "none" else ()
        loss = torch.empty(shape, dtype=result_dtype(arguments, x), device=x.device)
        n_bytes = sum(map(_room, self._kept(arguments).values()))
        return loss, (torch.empty(n_bytes, dtype=torch.uint8, device=x.device),)

    def forward(self, arguments: Mapping[str, Any]) -> Forward:
        """See `Handwritten.forward`."""
        x = _rows(arguments[self.roles(arguments)["x"]])
        loss, (saved,) = self.results(arguments)
        common = self._common(arguments, saved)
        tile, num_warps = _forward_tile(len(x), common["n_cols"], x, is_plain=self._is_plain(arguments))
        blocks = triton.cdiv(len(x), tile["ROWS"])
        parts = _parts_of_columns(blocks, triton.cdiv(common["n_cols"], tile["COLS"]), num_warps)
        is_summed = arguments["reduction"] != "none"
        sums = blocks * (1 if common["n_counted_ptr"] is None else 2) * is_summed
        states = (parts * (3 if common["label_ptr"] is None else 4) * len(x)) * (parts > 1)
        summed = sum_arguments(sums, torch.float32, x.device, states) if sums + states else NO_SUM
        if not is_summed:
            summed = {**summed, "PARTIALS": None}
        own = {"loss_ptr": loss, "IS_SPLIT": parts > 1, **summed, **tile}
        launch = Launch(contrastive_loss_forward, (blocks * parts,), {**common, **own}, num_warps)
        return Forward(loss, (saved,), (launch,))

    def backward(
        self,
        arguments: Mapping[str, Any],
        saved: Sequence[torch.Tensor],
        upstream: torch.Tensor,
        wanted: Sequence[str],
    ) -> Backward:
        """See `Handwritten.backward`."""
        roles = self.roles(arguments)
        n_rows, n_cols = self._counts(arguments)
        own: dict[str, Any] = {
            "grad_loss_ptr": upstream,
            "grad_loss_stride": upstream.stride(0) if upstream.dim() else 0,
        }
        gradients = self.gradients(arguments, wanted)
        for role in ("x", "y", "positive"):
            own |= _described(f"grad_{role}", gradients.get(roles.get(role, "")))
        of_rows = n_rows if own["grad_x_ptr"] is not None or own["grad_positive_ptr"] is not None else 0
        of_cols = n_cols if own["grad_y_ptr"] is not None else 0
        x = _rows(arguments[roles["x"]])
        tile, num_warps = _backward_tile(of_rows + of_cols, x, is_plain=self._is_plain(arguments))
        grid = (triton.cdiv(of_rows, tile["ROWS"]) + triton.cdiv(of_cols, tile["ROWS"]),)
        arguments = {**self._common(arguments, saved[0]), **own, **tile}
        return Backward(gradients, (Launch(contrastive_loss_backward, grid, arguments, num_warps),))

    def _is_plain(self, arguments: Mapping[str, Any]) -> bool:
        """Whether there are rows and columns, and nothing else."""
        return self.roles(arguments).keys() == {"x", "y"}

    def _counts(self, arguments: Mapping[str, Any]) -> tuple[int, int]:
        """How many rows there are, and how many columns."""
        roles = self.roles(arguments)
        n_rows, _ = _rows(arguments[roles["x"]]).shape
        return n_rows, arguments[roles["y"]].shape[0] if "y" in roles else n_rows

    def _kept(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """How many numbers are kept for backward, by the names of the kernels' parameters."""
        n_rows, n_cols = self._counts(arguments)
        roles = self.roles(arguments)
        kept = {"lse_ptr": n_rows, "x_inv_norm_ptr": n_rows}
        if "y" in roles:
            kept["y_inv_norm_ptr"] = n_cols
        if not self._is_plain(arguments):
            kept["share_ptr"] = n_rows
        if "label" in roles and arguments["reduction"] == "mean":
            kept["n_counted_ptr"] = 1
        return kept

    def _common(self, arguments: Mapping[str, Any], saved: torch.Tensor) -> dict[str, Any]:
        """The kernel arguments that forward and backward share; `saved` are the bytes of what is kept for backward."""
        tensors = {role: arguments[name] for role, name in self.roles(arguments).items()}
        x, label = _rows(tensors["x"]), tensors.get("label")
        n_rows, n_cols = self._counts(arguments)
        if label is not None and label.dtype == torch.bool:
            label = label.view(torch.uint8)
        return {
            **_described("x", tensors["x"]),
            **_described("y", tensors.get("y", tensors["x"])),
            **_described("positive", tensors.get("positive")),
            "label_ptr": label,
            "label_stride": 0 if label is None else label.stride(0),
            "share_ptr": None,
            "y_inv_norm_ptr": None,
            "n_counted_ptr": None,
            **_parts(saved, self._kept(arguments)),
            "n_rows": n_rows,
            "n_cols": n_cols,
            "n_dims": x.shape[1],
            "views": n_rows // len(tensors["x"]),
            "divisor": n_rows if arguments["reduction"] == "mean" else 1,
            "scale": 1 / arguments["temperature"],
            # Whether tensor cores multiply as exactly as single precision, in three products, unless autocast asks for
            # less. float16 is exact in one, with the range of single precision.
            "IS_EXACT": x.dtype == torch.float32 and not arguments[IS_AUTOCAST],
        }


class InfoNCE(Contrastive):
    """`logsumexp(cosines / temperature) - own`, over all positives, or over an own one and all negatives."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "query": REQUIRED,
        "positive": REQUIRED,
        "negatives": None,
        "temperature": None,
        "reduction": "mean",
    }

    def roles(self, arguments: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Contrastive.roles`."""
        if arguments["negatives"] is None:
            return {"x": "query", "y": "positive"}
        return {"x": "query", "y": "negatives", "positive": "positive"}

    def misfit(self, arguments: Mapping[str, Any]) -> bool:
        """See `Contrastive.misfit`."""
        query, positive, negatives = (arguments[name] for name in ("query", "positive", "negatives"))
        if query.dim() != 2 or query.shape != positive.shape:
            return True
        return negatives is not None and (negatives.dim() != 2 or negatives.shape[1] != query.shape[1])


class SupCon(Contrastive):
    """The mean of `logsumexp(cosines / temperature) - cosine / temperature` over those of the same label."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "input": REQUIRED,
        "target": REQUIRED,
        "temperature": None,
        "reduction": "mean",
    }

    def roles(self, arguments: Mapping[str, Any]) -> Mapping[str, str]:
        """See `Contrastive.roles`."""
        return {"x": "input", "label": "target"}

    def misfit(self, arguments: Mapping[str, Any]) -> bool:
        """See `Contrastive.misfit`."""
        input, target = arguments["input"], arguments["target"]
        return input.dim() not in (2, 3) or target.shape != input.shape[:1]


def _rows(embeddings: torch.Tensor) -> torch.Tensor:
    """Embeddings as rows, the views of a sample one after the other."""
    return embeddings if embeddings.dim() == 2 else embeddings.view(-1, embeddings.shape[-1])


def _described(role: str, embeddings: torch.Tensor | None) -> dict[str, Any]:
    """Embeddings, or none, by the names of the kernels' parameters."""
    row_stride, dim_stride = (0, 0) if embeddings is None else _rows(embeddings).stride()
    return {f"{role}_ptr": embeddings, f"{role}_row_stride": row_stride, f"{role}_dim_stride": dim_stride}


def _room(count: int) -> int:
    """Bytes of `count` numbers in single precision, up to where another tensor may begin."""
    return padded(4 * count)


def _parts(saved: torch.Tensor, kept: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """What is kept for backward, which is one tensor of bytes."""
    starts = accumulate(map(_room, kept.values()), initial=0)
    return {
        name: saved[start:][: 4 * n].view(torch.float32) for (name, n), start in zip(kept.items(), starts, strict=False)
    }


def _parts_of_columns(blocks: int, tiles: int, num_warps: int) -> int:
    """How many programs share the `tiles` of columns of each of some blocks of rows: so many that a large GPU is full,
    and each has two tiles at least, so that one comes while it has another.
    """
    wanted = min(_PROGRAMS * _WARPS // num_warps // blocks, tiles // 2)
    return triton.cdiv(tiles, triton.cdiv(tiles, max(wanted, 1)))


# A program's tile, by the names of the kernels' parameters, and its warps. The more embeddings a program has, the less
# often all others are read; the fewer, the more multiprocessors work. A warp multiplies 16 of them; of fewer, warps
# share the columns. What is not plain has labels, or positives beside the columns, in registers; embeddings that are
# not even have there what else Triton computes of each place, and reads by itself.
_Tile = tuple[dict[str, int], int]


def _forward_tile(n_rows: int, n_cols: int, x: torch.Tensor, *, is_plain: bool) -> _Tile:
    """Of ROWS rows and COLS columns, which are split over programs, so that few rows can have large tiles."""
    dims, is_even = _dims(x)
    programs = n_rows * max(n_cols // 256, 1)  # if each has a row, and two tiles of columns
    if x.itemsize == 2:
        rows = _most_rows(programs, 32 if not is_even else 64 if dims > 128 else 128)
        cols = 128 if rows > 32 and dims <= 128 and is_plain else 64
        num_warps = 8 if rows == 128 or dims > 128 else 4
    elif dims > 128 or not is_even:
        rows, cols, num_warps = _LEAST, 32, 4 if is_even else 8
    else:
        rows = _most_rows(programs, 64)  # which four warps of a Hopper multiply with columns that stay where they are
        cols = 64 if is_plain or rows < 64 else 32
        num_warps = 4 if rows == 64 or (rows == 32 and is_plain) else 8
    return {"ROWS": rows, "COLS": cols, "DIMS": dims}, num_warps


def _backward_tile(n_own: int, x: torch.Tensor, *, is_plain: bool) -> _Tile:
    """Of ROWS embeddings that have gradients, `n_own` in all, and COLS others."""
    dims, is_even = _dims(x)
    if x.itemsize == 2:
        rows = _most_rows(n_own, 64 if is_even and dims <= 128 else 32)
        cols = 64 if is_plain else 32
        is_alone = rows > _LEAST and n_own < 2 * _PROGRAMS * rows  # on its multiprocessor
        num_warps = 8 if dims > 128 or (is_alone and is_even) else 4
    elif dims > 128 or not is_even:
        rows, cols, num_warps = _LEAST, 32, 4 if is_even else 8
    else:
        rows = _most_rows(n_own, 32)
        cols, num_warps = (32, 4) if _most_rows(n_own, 64) > rows else (64, 8)
    return {"ROWS": rows, "COLS": cols, "DIMS": dims}, num_warps


def _most_rows(n_own: int, most: int) -> int:
    """How many of some embeddings a program has, if a large GPU is full of such programs."""
    return next((each for each in (128, 64, 32) if each <= most and n_own >= _PROGRAMS * each), _LEAST)


def _dims(x: torch.Tensor) -> tuple[int, bool]:
    """Dimensions of a tile, and whether all embeddings begin where 16 bytes can be read."""
    return max(triton.next_power_of_2(x.shape[1]), _LEAST), x.stride(0) % 16 == 0
