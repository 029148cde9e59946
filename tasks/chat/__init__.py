"""Chat completions from any OpenAI-compatible endpoint: vLLM, Gemini's compatible endpoint, hosted
APIs.

    with ChatEngine(endpoint_of("openai"), answers, budget=Budget(max_usd=20),
        prices=Prices(input=0.1, output=0.5)) as engine: for item, reply in ask_all(engine, ((item,
        request) for ...)): ...

`provider.py` has endpoints and keys, `request.py` and `reply.py` what is sent and returned,
`transport.py` one attempt, `limiter.py` the number of requests at a time, `breaker.py` dead
endpoints, `budget.py` money, `answer_record.py` stored answers, `meter.py` the progress line,
`window.py` the replies in memory, `engine.py` single requests, `batch_files.py` batch files, and
`ask_all`, which chooses.
"""
