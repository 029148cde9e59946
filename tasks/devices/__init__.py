"""The hosts and devices of one job, and meshes over them."""
