"""Chat completions from any OpenAI-compatible endpoint: vLLM, Gemini's compatible endpoint, hosted
APIs.

    with ChatEngine(endpoint_of("openai"), answers, budget=budget, prices=prices) as engine:
        for item, reply in ask_all(engine, ((item, request), ...)): ...

`provider.py` has endpoints and keys, `request.py` and `reply.py` what is sent and returned,
`attempts.py` the tries at a request, `transport.py` one of them, `limiter.py` the number of
requests at a time, `breaker.py` dead endpoints, `budget.py` money, `answer_record.py` stored
answers, `meter.py` the progress line, `window.py` the replies in memory, `engine.py` single
requests, `batch_files.py` batch files, and `ask_all`, which chooses.
"""
