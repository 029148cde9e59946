"""Who judges a student's tokens: log-probabilities of its responses under a teacher that has the same tokenizer.

`gemma.py`: a model on this job's devices, a base model or what earlier stages have trained. `endpoint.py`: an OpenAI-compatible server that
gives the log-probabilities of a prompt's tokens, such as vLLM. `feedback.py`: what both give. Nothing here imports JAX before it is used.
"""

from typing import Annotated

from pydantic import Field

from tasks.distillation.teacher_logps.endpoint import EndpointTeacherConfig
from tasks.distillation.teacher_logps.gemma import GemmaTeacherConfig

TeacherConfig = Annotated[GemmaTeacherConfig | EndpointTeacherConfig, Field(discriminator="name")]
"""The table `teacher = { name = "gemma", model = ... }` or `{ name = "endpoint", provider = ..., model = ... }`."""
