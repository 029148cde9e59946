"""Rewards: what a completion is worth. A reward is a file here; its name is the file's name.

    VERSION: int                     raise it when the same completion would score differently: it enters the stage key
    class Config(StrictModel)        name: Literal["<file>"], weight: float (relative to the other rewards of the stage), its own knobs
    def score(config, prompts: list[Prompt], completions: list[str]) -> list[float | None]

`completions[i]` is the decoded response to `prompts[i]`, without the terminator. `score` returns one value for each completion, in order:
a finite number, or None to abstain. Whatever cannot be judged (no reference answer, a judge that does not answer) is an abstention,
never a zero. `tasks.rewarding` combines the rewards of a stage.
"""
