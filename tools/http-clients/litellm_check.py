"""LiteLLM against a daemon, as a library and through its proxy: SLUICE_HTTP is the address, MODEL the model's name."""

import asyncio
import importlib.metadata
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Nothing is fetched: neither prices nor telemetry.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import openai

ADDRESS, MODEL = (os.environ[name] for name in ("SLUICE_HTTP", "MODEL"))
STORY = [{"role": "user", "content": "Tell me a story about a kite."}]
litellm.suppress_debug_info = True
litellm.telemetry = False


def library():
    for provider, base in (("openai", ADDRESS + "/v1"), ("ollama_chat", ADDRESS)):
        arguments = dict(
            model=f"{provider}/{MODEL}",
            api_base=base,
            api_key="any",
            messages=STORY,
            max_tokens=16,
            seed=7,
            temperature=0,
        )
        whole = litellm.completion(**arguments)
        text = whole.choices[0].message.content
        assert text and whole.usage.completion_tokens > 0, whole
        pieces = litellm.completion(stream=True, **arguments)
        streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        assert streamed == text, (provider, streamed, text)
    answer = asyncio.run(litellm.acompletion(**arguments))
    assert answer.choices[0].message.content == text


def errors():
    arguments = dict(api_base=ADDRESS + "/v1", api_key="any", messages=STORY)
    try:
        litellm.completion(model="openai/nobody/knows-it", **arguments)
    except litellm.NotFoundError:
        pass
    else:
        raise AssertionError("a model that is not there answered")
    try:
        litellm.completion(model=f"openai/{MODEL}", max_tokens=1_000_000, **arguments)
    except litellm.BadRequestError as error:
        assert "context" in str(error), error
    else:
        raise AssertionError("more than the context holds was not refused")


def proxy():
    """A client of OpenAI's API, LiteLLM's proxy, the daemon."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    key = "sk-" + secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "general_settings": {"master_key": key},
            "model_list": [
                {
                    "model_name": "story",
                    "litellm_params": {
                        "model": f"openai/{MODEL}",
                        "api_base": ADDRESS + "/v1",
                        "api_key": "any",
                    },
                }
            ]
        }
        path = Path(folder) / "config.yaml"
        # JSON is YAML.
        path.write_text(json.dumps(config))
        command = [Path(sys.executable).with_name("litellm"), "--config", path]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        log = open(Path(folder) / "log", "w+")
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            client = openai.OpenAI(
                base_url=f"http://127.0.0.1:{port}", api_key=key, max_retries=0
            )
            arguments = dict(model="story", messages=STORY, max_tokens=16, seed=7, temperature=0)
            whole = first_answer(client, process, log, arguments)
            text = whole.choices[0].message.content
            assert text and whole.usage.completion_tokens > 0
            pieces = client.chat.completions.create(stream=True, **arguments)
            streamed = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
            assert "".join(streamed) == text, (streamed, text)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def first_answer(client, process, log, arguments):
    """The proxy takes long to start."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return client.chat.completions.create(**arguments)
        except openai.APIConnectionError:
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise AssertionError(log.read()[-4000:])
            time.sleep(0.5)


def main():
    for check in (library, errors, proxy):
        check()
        print(f"litellm {importlib.metadata.version('litellm')}: {check.__name__}")


if __name__ == "__main__":
    sys.exit(main())
