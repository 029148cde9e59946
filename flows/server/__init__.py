"""The Prefect servers that we start: whom they admit, and how our own processes recognise them."""
