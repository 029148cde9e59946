"""Judges: models that say how good a response is, for rewards and for rubrics.

    judge = open_judge(config.judge, resources)
    rulings = judge.ask([Question(messages), ...])    # in order; from any thread

`judge.py` is the contract, `endpoint_judge.py` a judge behind an OpenAI-compatible API,
`gemma_judge.py` one in this process on its own half of the devices; who is asked. What they are
asked, and how a ruling becomes a number, is in the other files.
"""
