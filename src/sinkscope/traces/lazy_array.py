"""`LazyTensor`: a tensor of a trace as xarray reads it, when it is indexed. Needs xarray."""

from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from sinkscope.axes import TRACE_AXES
from sinkscope.traces.format import widen
from sinkscope.traces.reading import Trace


class LazyTensor(BackendArray):
    """A tensor of a trace in axes of the given sizes, see `exporting.axis_sizes`; what is missing is filled."""

    def __init__(self, trace: Trace, name: str, sizes: dict[str, int]) -> None:
        self.trace, self.name = trace, name
        self.shape = tuple(sizes[axis] for axis in TRACE_AXES[name])
        self.dtype = getattr(trace, name).dtype

    def __getitem__(self, key: Any) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        array = getattr(self.trace, self.name)
        return array[key] if len(key) == 1 else widen(self.name, array[key[:-1]], self.shape[-1])[..., key[-1]]
