"""What a fused path says that cannot run on a device: no compiler for its kernels, a tile too large, an architecture too old."""


class NoKernel(Exception):
    """Nothing was computed; another path has to take the call."""
