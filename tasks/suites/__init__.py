"""Suites: evaluation sets that people know by name. A suite is a file here; its name is the file's name.

    VERSION: int                     raise it when the same file would give other prompts: it enters the stage key
    KIND: str                        which evaluation asks it: "reasoning_eval" or "safety_eval"
    class Config(SuiteConfig)        name: Literal["<file>"], or FileSuite, `path` with the published file's place as default; its own knobs
    def prompts(config, data: Path | None) -> list[EvalPrompt]
                                     all prompts in file order, with ids `<label>/<number>` that do not change while the file does not
    def dependencies(config, data: Path | None) -> dict[str, str | int]
                                     `{"data/<path>": digest}` of the files that it reads
    def expected(config) -> int      how many prompts the published file has, for a plan that is made without it

A prompt without what judges an answer to it (check `none`, no grounding, no request) counts for format, length and markers alone, or for a
judge's rating where one is configured. Files are read as they are published (`tasks.data.readers`, local or `hf://`, `gs://`). A row that
cannot be read is an InputError that names file and line: leaving it out would change the denominator. `tasks.evaluation.suite` has
`SuiteConfig` and what suites share. A module's top level imports nothing slow.
"""
