"""Judges: models that say how good a response is, for rewards and for rubrics.

    judge = open_judge(config.judge, resources)
    rulings = judge.ask([Question(text), ...])    # in order; from any thread

`judge.py` has the configs and the contract, `endpoint_judge.py` a judge behind an OpenAI-compatible
API, `gemma_judge.py` one in this process on its own half of the devices; `open_judge.py` chooses.
The other files make questions, and numbers from rulings.
"""
