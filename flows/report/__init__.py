"""The report of a run and the comparison of several: computed from the store's evaluation items,
rendered as one HTML page."""
