"""The tensors of indexes on the device that searches: moved once, again only when the corpus has changed."""

from __future__ import annotations

import torch
from torch import Tensor

from pss_engine.ops import DenseSearch, SparseSearch


class Placement:
    """Where a search runs. On the CPU every tensor stays where it is, mapped files included."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._moved: dict[str, tuple[int, Tensor]] = {}

    def held(self, name: str, tensor: Tensor, version: int) -> Tensor:
        """A tensor of an index, of this version of its corpus."""
        if self.device.type == "cpu":
            return tensor
        known = self._moved.get(name)
        if known is None or known[0] != version:
            known = self._moved[name] = (version, tensor.to(self.device))
        return known[1]

    def dense(self, search: DenseSearch, version: int) -> DenseSearch:
        scales = None if search.scales is None else self.held("scales", search.scales, version)
        return DenseSearch(search.queries.to(self.device), self.held("vectors", search.vectors, version), scales)

    def sparse(self, search: SparseSearch, version: int) -> SparseSearch:
        names = ("indptr", "passages", "weights")
        index = (self.held(name, getattr(search, name), version) for name in names)
        return SparseSearch(search.terms.to(self.device), search.starts.to(self.device), *index)
