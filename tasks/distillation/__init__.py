"""On-policy distillation: batches of what the student samples, scored by its teacher, who has the
same tokenizer.

`gemma_teacher.py`: a model on this job's devices, a base model or what earlier stages have trained.
`endpoint_teacher.py`: an OpenAI-compatible server that gives the log-probabilities of a prompt's
tokens, such as vLLM. `feedback.py`: what both give.
"""
