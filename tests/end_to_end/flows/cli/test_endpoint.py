"""`lyceum endpoint` as a process of its own: OpenAI's own client talks to it, `lyceum ask` says the
same, Ctrl-C ends it."""

import json
import re
import signal
from typing import Any

import openai

from flows.cli.ask import answer
from tests.flows.cli import test_ask
from tests.flows.cli.test_ask import QUESTION
from tests.flows.lab import start

run = test_ask.run
KEY = "a-key-of-the-test"


def test_openais_client_is_answered_until_ctrl_c(run, monkeypatch):
    store, record, _ = run
    monkeypatch.setenv("LYCEUM_ENDPOINT_KEY", KEY)
    process = start(["endpoint", "demo-1", "--port", "0", "--store", store.uri, "--json"])
    try:
        assert process.stderr.readline() == "demo-1-grpo is loaded; compiling what answers take\n"
        line = process.stderr.readline()
        found = re.match(r"(\S+) answers at (http://127\.0\.0\.1:\d+/v1) with its key", line)
        assert found, line
        name, url = found.groups()
        client = openai.OpenAI(base_url=url, api_key=KEY, timeout=300)
        assert [one.id for one in client.models.list()] == [name] == ["demo-1-grpo"]
        ask: Any = {"model": name, "messages": [{"role": "user", "content": QUESTION}]}
        ask |= {"temperature": 0, "max_tokens": 40}
        whole = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
        said = whole.choices[0].message.content
        assert said
        assert answer(store, record, QUESTION, None)["completion"].startswith(said)
        assert "".join(one.token for one in whole.choices[0].logprobs.content) == said
        stream = client.chat.completions.create(**ask, stream=True)
        pieces = [one.choices[0].delta.content for one in stream]
        assert "".join(filter(None, pieces)) == said
        assert len(pieces) > 3
    finally:
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert json.loads(out) == {"run_id": "demo-1", "stage": "grpo", "stopped": True}
