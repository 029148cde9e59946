"""Control tokens of Gemma's tokenizers."""

CONTROL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
