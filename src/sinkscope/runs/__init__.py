"""One store for every resumable folder: atomic files, checksums, one writer a folder, and the identity of a run."""
