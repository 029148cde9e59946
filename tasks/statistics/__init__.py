"""Statistics: intervals, power, and the noise of the seed."""
