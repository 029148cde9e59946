"""Chat completions from any OpenAI-compatible endpoint: vLLM, Gemini's compatible endpoint, hosted
APIs.

    with ChatEngine(endpoint_of("openai"), answers, budget=Budget(max_usd=20),
        prices=Prices(input=0.1, output=0.5)) as engine: for item, reply in ask_all(engine, ((item,
        request) for ...)): ...

`provider.py` is where, `request.py` and `reply.py` what, `transport.py` one attempt, `limiter.py`
and `breaker.py` how fast and how long, `budget.py` how much, `answer_record.py` what is stored,
`meter.py` what is told, `window.py` what waits, `engine.py` one request at a time, `batch_files.py`
the other way to ask, and either.
"""
