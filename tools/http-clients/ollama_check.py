"""The `ollama` package against a daemon: SLUICE_HTTP is its address, MODEL the model's name, KIND its kind."""

import importlib.metadata
import json
import os
import sys

import ollama

ADDRESS, MODEL, KIND = (os.environ[name] for name in ("SLUICE_HTTP", "MODEL", "KIND"))
STORY = [{"role": "user", "content": "Tell me a story about a kite."}]
OPTIONS = {"seed": 7, "num_predict": 16, "temperature": 0}
client = ollama.Client(host=ADDRESS)


def models():
    assert MODEL in [model.model for model in client.list().models]
    assert MODEL in [model.model for model in client.ps().models]
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities, shown
    assert shown.modelinfo["general.parameter_count"] > 0


def chat():
    whole = client.chat(model=MODEL, messages=STORY, options=OPTIONS)
    assert whole.done and whole.done_reason in ("stop", "length")
    assert whole.message.content and whole.eval_count <= 16 and whole.total_duration > 0
    pieces = list(client.chat(model=MODEL, messages=STORY, options=OPTIONS, stream=True))
    assert "".join(piece.message.content for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def turns():
    first = client.chat(model=MODEL, messages=STORY, options=OPTIONS).message
    messages = [*STORY, first, {"role": "user", "content": "And then?"}]
    assert client.chat(model=MODEL, messages=messages, options=OPTIONS).done


def loading():
    """Without a prompt, a request is about the model alone."""
    for loaded in (client.generate(model=MODEL), client.chat(model=MODEL, messages=[])):
        assert loaded.done and loaded.done_reason == "load" and not loaded.eval_count, loaded


def generate():
    whole = client.generate(model=MODEL, prompt="Once upon a time", raw=True, options=OPTIONS)
    pieces = client.generate(
        model=MODEL, prompt="Once upon a time", raw=True, options=OPTIONS, stream=True
    )
    assert "".join(piece.response for piece in pieces) == whole.response
    assert client.generate(model=MODEL, prompt="Hello", options=OPTIONS).done


def refused(field, **arguments):
    try:
        client.chat(model=MODEL, messages=STORY, **arguments)
    except ollama.ResponseError as error:
        assert error.status_code == 400 and field in error.error, error
    else:
        raise AssertionError(f"{field} was not refused")


def refusals():
    refused("mirostat", options={"mirostat": 1})
    refused("think", think=True)
    try:
        client.chat(model="nobody/knows-it", messages=STORY)
    except ollama.ResponseError as error:
        assert error.status_code == 404, error
    else:
        raise AssertionError("a model that is not there answered")
    # What Ollama's programs send by themselves.
    client.chat(
        model=MODEL, messages=STORY, options={"num_ctx": 4096, "num_predict": 1}, keep_alive="5m"
    )


def logprobs():
    arguments = dict(model=MODEL, messages=STORY, options=OPTIONS, logprobs=True, top_logprobs=2)
    if KIND != "autoregressive":
        try:
            client.chat(**arguments)
        except ollama.ResponseError as error:
            assert error.status_code == 400, error
        return
    told = client.chat(**arguments).logprobs
    assert told and all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in told)


def forms():
    schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
    options = {"seed": 3, "num_predict": 200, "temperature": 1}
    if KIND != "autoregressive":
        refused("format", format=schema)
        return
    answer = client.chat(model=MODEL, messages=STORY, options=options, format=schema)
    assert isinstance(json.loads(answer.message.content)["count"], int), answer


def main():
    for check in (models, chat, turns, loading, generate, refusals, logprobs, forms):
        check()
        print(f"ollama {importlib.metadata.version('ollama')}: {check.__name__}")


if __name__ == "__main__":
    sys.exit(main())
