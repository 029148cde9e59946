"""`lyceum plan`: fit, time and cost, before anything is submitted."""
