# isort: skip_file

from .bundles import open_bundle as open_bundle, write_bundle as write_bundle
from .exporting import export_trace as export_trace, to_xarray as to_xarray
from .format import FORMAT as FORMAT
from .reading import Trace as Trace, open_trace as open_trace, open_traces as open_traces
from .statistics_folder import is_statistics as is_statistics, read_statistics as read_statistics
from .trace_array import TraceArray as TraceArray
from .writing import TraceWriter as TraceWriter, claim_folder as claim_folder
