"""Losses: pure functions of a model and a batch, a file each. A stage kind names the one it trains
on; batches lie in the rooms below."""
