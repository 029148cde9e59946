"""The report of a run and the comparison of several: read from the store, computed from the items,
rendered as one HTML page."""
