"""Teachers: where worked traces come from. A teacher is a file here; its name is the file's name.

    VERSION: int                                          raise it when the same config, seed and data would give other rows
    class Config(StrictModel)                             name: Literal["<file>"], and its own settings
    def dependencies(config, data) -> dict[str, str|int]  what else decides its rows (digests of files, versions of packages); raises
                                                          InputError at once when a file is missing, before any job starts
    def expected(config) -> int                           rows that `teach` will go through, 0 when that is not known
    def teach(config, lesson: Lesson) -> Iterator[Row]    every row it read or made, in a fixed order

A teacher whose prompts others may answer (`prompts = [{ name = "dataset", ... }]` in an answering teacher's table) also has

    def prompts(config, lesson: Lesson) -> Iterator[Prompt | Dropped]

`tasks.teaching.lesson` has `Lesson` and `Row`. A module's top level imports neither JAX nor anything slow.
"""
