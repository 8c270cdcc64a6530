"""Classification, segmentation and restoration of small pictures, and points."""
