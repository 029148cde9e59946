"""A trained model behind OpenAI's HTTP interface: `lyceum endpoint`."""
