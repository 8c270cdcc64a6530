"""Run folders on any file system that fsspec knows: written to a spool here and uploaded, read through a cache here."""
