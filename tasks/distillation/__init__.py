"""On-policy distillation: batches of what the student samples, scored by a teacher with the same
tokenizer.

`gemma_teacher.py`: a model on this job's devices, a base model or one that earlier stages trained.
`endpoint_teacher.py`: an OpenAI-compatible server that gives the log-probabilities of a prompt's
tokens, such as vLLM. `feedback.py`: the interface of both.
"""
