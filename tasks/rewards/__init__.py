"""Rewards: what a response is worth. A reward is a file here; its name is the file's name.

    VERSION: int                     raise it when the same response would score differently: it enters the stage key
    class Config(RewardConfig)       name: Literal["<file>"], and its own knobs; weight and domains are RewardConfig's
    def score(config, prompts: Sequence[Prompt], responses: Sequence[Response]) -> list[float | None | Judged]

`responses[i]` answers `prompts[i]`. `score` returns one value for each response, in order: a finite number, or None to abstain; a
`Judged` is such a value with what the ledger shall keep of how it came about. Whatever cannot be judged (no reference answer, a judge
that does not answer) is an abstention, never a zero. `score` is called in threads, for two rollouts at once.
`tasks.reinforcement.rewarding` has `RewardConfig`, `Response`, `Judged` and `Resources`, and combines the rewards of a stage.

A reward may also have

    def prepare(config, resources: Resources) -> Any           called once per job: fits, loads, connects. What it returns is then the first
                                                               argument of `score` in place of the config; its `close()`, if any, ends it.
                                                               If it has `at(update)`, what that returns is the argument at an update
    def dependencies(config, data) -> dict[str, str | int]     what else decides its values: versions of packages, of checks, of models
    def models(config) -> tuple[str, ...]                      base models that it loads (`tasks.models.source`): they are sent to a TPU
    def programs(config, model, calls, upstream) -> list[Program]
                                                               what it compiles to score `calls` responses: `model` has the devices of
                                                               `tasks.devices.hosts.halves`' second, `upstream` the configs of the stage's
                                                               inputs

A module's top level imports neither JAX nor anything slow.
"""
