"""The kernels of InfoNCELoss and SupConLoss: cross entropies of cosines that are never in memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import triton

from autogen.losses.handwritten._reduction import Reduced, described, upstream_arguments
from autogen.losses.handwritten.contrastive_backward import contrastive_loss_backward
from autogen.losses.handwritten.contrastive_factors import contrastive_loss_factors
from autogen.losses.handwritten.contrastive_forward import contrastive_loss_forward
from autogen.losses.handwritten.contrastive_path import (
    MOST_ROWS,
    Tile,
    dims_of,
    parts_of_columns,
    prefers_tiles,
    tile_of,
)
from autogen.runtime.handwritten import (
    CAPABILITY,
    IS_AUTOCAST,
    REQUIRED,
    WANTED,
    Backward,
    Forward,
    Launch,
)

_MOST_DIMS = 256  # of an embedding: a program has the gradients of its own in registers
_FACTORED = 16  # embeddings of a program that computes factors


class Contrastive(Reduced):
    """What the contrastive losses share: all but what their arguments are to the kernels.

    Args:
        always: take all calls that tiles are made for, not only those that `prefers_tiles` has them take.
        capability: the compute capability to plan for, by default that of the device.
    """

    def __init__(self, *, always: bool = False, capability: tuple[int, int] | None = None) -> None:
        self._always, self._planned = always, capability

    backends = frozenset({"cuda"})  # on AMD's GPUs, tiles spill
    floats = (torch.float16, torch.bfloat16, torch.float32)

    @abstractmethod
    def roles(self, arguments: Mapping[str, Any]) -> Mapping[str, str]:
        """The arguments that are `x`, `y`, `positive` and `label`, as far as there are such (see the kernels)."""

    @abstractmethod
    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the shapes fit; if not, the loss says so."""

    def inputs(self, arguments: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        """See `Reduced.inputs`."""
        return [arguments[name] for role, name in self.roles(arguments).items() if role != "label"]

    def shape(self, arguments: Mapping[str, Any]) -> Sequence[int]:
        """See `Reduced.shape`."""
        return (self.inputs(arguments)[0].shape[:-1].numel(),)

    def misfit(self, arguments: Mapping[str, Any], needs_gradient: Sequence[str]) -> str | None:
        """See `Reduced.misfit`."""
        if not isinstance(arguments["temperature"], (int, float)):
            return "a temperature that is no number"
        if not self.fits(arguments):
            return "shapes that do not fit"
        x, *others = self.inputs(arguments)
        if any(each.dtype != x.dtype for each in others):
            return "embeddings of several dtypes"
        if not (x.numel() and all(each.numel() for each in others)):
            return "no embeddings"
        if x.shape[-1] > _MOST_DIMS:
            return f"embeddings of more than {_MOST_DIMS} dimensions"
        if x.dim() == 3 and 1 not in x.shape[:2] and x.stride(0) != x.shape[1] * x.stride(1):
            return "views that do not follow each other in memory"
        label = arguments[self.roles(arguments)["label"]] if "label" in self.roles(arguments) else None
        if label is not None and (label.is_complex() or label.requires_grad):
            return f"labels of {label.dtype}"
        dtype = torch.float16 if arguments[IS_AUTOCAST] else x.dtype
        if not (self._always or prefers_tiles(*self._sizes(arguments), dtype, self._capability(arguments))):
            return "embeddings that torch multiplies faster"
        return None

    def forward(self, arguments: Mapping[str, Any]) -> Forward:
        """See `Handwritten.forward`."""
        loss, saved = self.results(arguments)
        common = self._common(arguments, saved)
        has_sums, has_labels = common["sums_ptr"] is not None, common["label_ptr"] is not None
        n_rows, n_cols, _ = self._sizes(arguments)
        # As if a program had a row and two tiles of columns, which are split over programs: few rows have large tiles.
        tile, num_warps = self._tile(arguments, n_rows * max(n_cols // 256, 1), has_sums=has_sums)
        blocks = triton.cdiv(n_rows, tile["ROWS"])
        parts = parts_of_columns(blocks, triton.cdiv(n_cols, tile["COLS"]), num_warps)
        states = (4 if has_labels else 3) + tile["DIMS"] * has_sums
        sums = blocks * (1 if common["n_counted_ptr"] is None else 2)
        summed = self.summing(arguments, sums, parts * states * n_rows * (parts > 1))
        own = {"loss_ptr": loss, "IS_SPLIT": parts > 1, **summed, **tile}
        launch = _launch(contrastive_loss_forward, blocks * parts, {**common, **own}, num_warps)
        return Forward(loss, saved, (self._factoring(arguments, common), launch))

    def backward(
        self,
        arguments: Mapping[str, Any],
        saved: Sequence[torch.Tensor],
        upstream: torch.Tensor,
        wanted: Sequence[str],
    ) -> Backward:
        """See `Handwritten.backward`."""
        n_rows, n_cols, n_dims = self._sizes(arguments)
        gradients = self.gradients(arguments, wanted)
        by_role = {role: gradients[name] for role, name in self.roles(arguments).items() if name in gradients}
        if "label" in self.roles(arguments):
            by_role["y"] = by_role.pop("x")  # columns are rows
        own = upstream_arguments(upstream)
        for role in ("x", "y", "positive"):
            own |= described(f"grad_{role}", _rows(by_role.get(role)), ("row", "dim"))
        common = self._common(arguments, saved)
        of_rows = n_rows if {"x", "positive"} & by_role.keys() else 0
        of_cols = n_cols if "y" in by_role else 0
        tile, num_warps = self._tile(arguments, of_cols, has_sums=True)
        programs = triton.cdiv(of_rows, tile["ROWS"]) + triton.cdiv(of_cols, tile["ROWS"])
        own = {**common, **own, **tile, "n_dims": n_dims, "IS_SUM": not upstream.dim()}
        return Backward(gradients, (_launch(contrastive_loss_backward, programs, own, num_warps),))

    def _capability(self, arguments: Mapping[str, Any]) -> tuple[int, int] | None:
        """The compute capability to plan for."""
        return self._planned or arguments[CAPABILITY]

    def _tile(self, arguments: Mapping[str, Any], n_own: int, *, has_sums: bool) -> Tile:
        """See `tile_of`."""
        x = arguments[self.roles(arguments)["x"]]
        return tile_of(n_own, dims_of(x.shape[-1]), x.dtype, self._capability(arguments), has_sums=has_sums)

    def _sizes(self, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
        """How many rows there are, how many columns, and how many dimensions."""
        roles = self.roles(arguments)
        x = arguments[roles["x"]]
        n_rows = x.shape[:-1].numel()
        return n_rows, arguments[roles["y"]].shape[0] if "y" in roles else n_rows, x.shape[-1]

    def _first_factors(self, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
        """Where the factors of `y` begin, which may be those of `x`, those of `positive`, and where all end."""
        roles = self.roles(arguments)
        n_rows, n_cols, _ = self._sizes(arguments)
        of_x = -(-n_rows // MOST_ROWS) * MOST_ROWS
        of_y = -(-n_cols // MOST_ROWS) * MOST_ROWS * ("y" in roles)
        return of_x * ("y" in roles), of_x + of_y, of_x + of_y + of_x * ("positive" in roles)

    def kept(self, arguments: Mapping[str, Any]) -> Mapping[str, tuple[torch.dtype, int]]:
        """See `Reduced.kept`."""
        n_rows, _, n_dims = self._sizes(arguments)
        roles = self.roles(arguments)
        *_, n_factors = self._first_factors(arguments)
        dtype, dims = arguments[roles["x"]].dtype, dims_of(n_dims)
        is_single = dtype == torch.float32
        kept = {"high_ptr": (torch.float16 if is_single else dtype, n_factors * dims)}
        # Tensor cores multiply as exactly as single precision, in three products, unless autocast asks for less.
        if is_single and not arguments[IS_AUTOCAST]:
            kept["rest_ptr"] = torch.float16, n_factors * dims
        kept["inv_norm_ptr"] = torch.float32, n_factors
        if not is_single:
            kept["inv_length_ptr"] = torch.float32, n_factors
        kept["lse_ptr"] = kept["share_ptr"] = torch.float32, n_rows
        if "label" not in roles and roles["x"] in arguments[WANTED]:
            kept["sums_ptr"] = torch.float32, n_rows * dims
        if "label" in roles and arguments["reduction"] == "mean":
            kept["n_counted_ptr"] = torch.float32, 1
        return kept

    def _common(self, arguments: Mapping[str, Any], saved: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The kernel arguments that forward and backward share."""
        roles = self.roles(arguments)
        x, label = arguments[roles["x"]], arguments[roles["label"]] if "label" in roles else None
        n_rows, n_cols, _ = self._sizes(arguments)
        if label is not None and label.dtype == torch.bool:
            label = label.view(torch.uint8)
        first_y, first_positive, _ = self._first_factors(arguments)
        return {
            **dict.fromkeys(("rest_ptr", "inv_length_ptr", "sums_ptr", "n_counted_ptr")),
            **self.shared(arguments, saved),
            "label_ptr": label,
            "label_stride": 0 if label is None else label.stride(0),
            "n_rows": n_rows,
            "n_cols": n_cols,
            "first_y": first_y,
            "first_positive": first_positive,
            "views": n_rows // len(x),
            "scale": 1 / arguments["temperature"],
            "HAS_POSITIVES": "positive" in roles,
        }

    def _factoring(self, arguments: Mapping[str, Any], common: Mapping[str, Any]) -> Launch:
        """The launch that computes what is kept of each embedding."""
        roles = self.roles(arguments)
        *_, n_factors = self._first_factors(arguments)
        own: dict[str, Any] = {}
        for role in ("x", "y", "positive"):
            own |= described(role, _rows(arguments[roles[role]]) if role in roles else None, ("row", "dim"))
        own |= {"n_dims": self._sizes(arguments)[2], "ROWS": _FACTORED, "DIMS": dims_of(self._sizes(arguments)[2])}
        return _launch(contrastive_loss_factors, n_factors // _FACTORED, {**common, **own}, 4)


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

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """See `Contrastive.fits`."""
        query, positive, negatives = (arguments[name] for name in ("query", "positive", "negatives"))
        if query.dim() != 2 or query.shape != positive.shape:
            return False
        return negatives is None or (negatives.dim() == 2 and negatives.shape[1] == query.shape[1])


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

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """See `Contrastive.fits`."""
        input, target = arguments["input"], arguments["target"]
        return input.dim() in (2, 3) and target.shape == input.shape[:1]


def _rows(embeddings: torch.Tensor | None) -> torch.Tensor | None:
    """Embeddings as rows, the views of a sample one after the other."""
    return embeddings if embeddings is None or embeddings.dim() == 2 else embeddings.view(-1, embeddings.shape[-1])


def _launch(kernel: Any, programs: int, arguments: Mapping[str, Any], num_warps: int) -> Launch:
    """A launch with those of some arguments that a kernel takes."""
    return Launch(kernel, (programs,), {name: arguments[name] for name in kernel.arg_names}, num_warps)
