"""The `openai` package against a daemon: SLUICE_HTTP is its address, MODEL the model's name, KIND its kind."""

import asyncio
import json
import os
import sys

import openai
from openai.types.chat import completion_create_params as chat_params
from openai.types import completion_create_params as text_params

ADDRESS, MODEL, KIND = (os.environ[name] for name in ("SLUICE_HTTP", "MODEL", "KIND"))
STORY = [{"role": "user", "content": "Tell me a story about a kite."}]
client = openai.OpenAI(base_url=ADDRESS + "/v1", api_key="any", max_retries=0)


def refused(field, **arguments):
    """The request is refused, and the error names the field."""
    try:
        client.chat.completions.create(model=MODEL, messages=STORY, **arguments)
    except openai.BadRequestError as error:
        assert error.param == field, (field, error)
    else:
        raise AssertionError(f"{field} was not refused")


def models():
    names = [model.id for model in client.models.list()]
    assert MODEL in names, names
    assert client.models.retrieve(MODEL).id == MODEL
    try:
        client.models.retrieve("nobody/knows-it")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("a model that is not there was found")


def chat():
    whole = client.chat.completions.create(
        model=MODEL, messages=STORY, seed=7, max_tokens=24, temperature=0
    )
    assert whole.object == "chat.completion" and whole.id.startswith("chatcmpl-")
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = whole.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 24
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert whole.system_fingerprint.startswith("sluice-")
    own = choice.model_extra["sluice"]
    assert own["seed"] == 7 and own["passes"] > 0 and own["level"], own

    text, last, finish = "", None, None
    stream = client.chat.completions.create(
        model=MODEL,
        messages=STORY,
        seed=7,
        max_completion_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        last = chunk
        for piece in chunk.choices:
            text += piece.delta.content or ""
            finish = piece.finish_reason or finish
    assert text == choice.message.content, (text, choice.message.content)
    assert finish == choice.finish_reason
    assert last.usage == usage, (last, usage)


def several():
    answers = client.chat.completions.create(
        model=MODEL, messages=STORY, n=3, seed=5, max_tokens=16, temperature=0.9
    )
    assert [choice.index for choice in answers.choices] == [0, 1, 2]
    seeds = [choice.model_extra["sluice"]["seed"] for choice in answers.choices]
    assert seeds == [5, 6, 7], seeds
    second = client.chat.completions.create(
        model=MODEL, messages=STORY, seed=6, max_tokens=16, temperature=0.9
    )
    assert second.choices[0].message.content == answers.choices[1].message.content
    texts = {}
    for chunk in client.chat.completions.create(
        model=MODEL, messages=STORY, n=3, seed=5, max_tokens=16, temperature=0.9, stream=True
    ):
        for piece in chunk.choices:
            texts[piece.index] = texts.get(piece.index, "") + (piece.delta.content or "")
    assert texts == {choice.index: choice.message.content for choice in answers.choices}


def conversation():
    parts = [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "a story."}]
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": parts},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
    assert answer.choices[0].message.content is not None


def turns():
    """An answer goes back as the package writes it, with all fields that it has nothing in."""
    arguments = dict(model=MODEL, max_tokens=8, seed=3)
    first = client.chat.completions.create(messages=STORY, **arguments).choices[0].message
    assert "annotations" in first.model_dump(), first
    messages = [*STORY, first.model_dump(), {"role": "user", "content": "And then?"}]
    second = client.chat.completions.create(messages=messages, **arguments)
    assert second.choices[0].message.content is not None


LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks where something is.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "integer"}},
            "required": ["at"],
            "additionalProperties": False,
        },
    },
}


def calls():
    """A call, and what the function says to it."""
    if KIND != "autoregressive":
        refused("tools", tools=[LOOK])
        return
    # A model of random weights makes no call by itself.
    form = r'\{"name": "look", "arguments": \{"at": [0-9]\}\}'
    arguments = dict(model=MODEL, tools=[LOOK], seed=3, temperature=1)
    form = dict(max_tokens=100, extra_body={"sluice": {"regex": form}})
    answer = client.chat.completions.create(messages=STORY, **arguments, **form).choices[0]
    assert answer.finish_reason == "tool_calls", answer
    (call,) = answer.message.tool_calls
    at = json.loads(call.function.arguments)["at"]
    assert call.function.name == "look" and 0 <= at <= 9, call
    streamed = ""
    for chunk in client.chat.completions.create(messages=STORY, stream=True, **arguments, **form):
        for choice in chunk.choices:
            for piece in choice.delta.tool_calls or []:
                streamed += piece.function.arguments
    assert streamed == call.function.arguments, streamed
    told = {"role": "tool", "tool_call_id": call.id, "content": f"a kite is at {at}"}
    messages = [*STORY, answer.message.model_dump(), told]
    after = client.chat.completions.create(messages=messages, max_tokens=4, **arguments)
    assert after.choices[0].finish_reason in ("stop", "length"), after
    named = {"type": "function", "function": {"name": "look"}}
    refused("tool_choice", tools=[LOOK], tool_choice=named)


def completions():
    whole = client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=12, seed=3, temperature=0, echo=True
    )
    assert whole.object == "text_completion"
    assert whole.choices[0].text.startswith("Once upon a time")
    two = client.completions.create(
        model=MODEL, prompt=["Once", "There was"], max_tokens=8, seed=3, temperature=0
    )
    assert len(two.choices) == 2
    text = ""
    for chunk in client.completions.create(
        model=MODEL, prompt="There was", max_tokens=8, seed=3, temperature=0, stream=True
    ):
        text += "".join(choice.text for choice in chunk.choices)
    assert text == two.choices[1].text


def refusals():
    refused("frequency_penalty", frequency_penalty=0.5)
    refused("presence_penalty", presence_penalty=-1.0)
    refused("logit_bias", logit_bias={"5": 10})
    refused("unheard_of", extra_body={"unheard_of": 1})
    refused("audio", audio={"voice": "ash", "format": "wav"}, modalities=["text"])
    refused("modalities", modalities=["text", "audio"])
    refused("store", store=True)
    refused("n", n=17)
    refused("max_tokens", max_tokens=1_000_000)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    try:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": [image]}]
        )
    except openai.BadRequestError as error:
        assert error.param == "messages" and "image_url" in error.message, error
    else:
        raise AssertionError("an image was not refused")
    # What means nothing is taken.
    client.chat.completions.create(
        model=MODEL,
        messages=STORY,
        max_tokens=4,
        frequency_penalty=0,
        presence_penalty=0.0,
        logit_bias={},
        n=1,
        store=False,
        user="somebody",
        modalities=["text"],
        service_tier="auto",
        response_format={"type": "text"},
        tools=[],
        top_p=1,
    )
    try:
        client.chat.completions.create(model="nobody/knows-it", messages=STORY)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found" and error.param == "model", error
    else:
        raise AssertionError("a model that is not there answered")


def own():
    """What is Sluice's own, under its one key."""
    if KIND == "masked_diffusion":
        options = {"preset": "balanced", "canvas": True}
    else:
        options = {"canvas": True, "block_length": 4}
    pictures, text = 0, ""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=STORY,
        max_tokens=16,
        seed=2,
        stream=True,
        extra_body={"sluice": options},
    )
    for chunk in stream:
        if not chunk.choices:
            picture = chunk.model_extra["sluice"]
            assert picture["index"] == 0 and picture["canvas"]["tokens"], picture
            pictures += 1
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert pictures > 0 and text
    wrong = {"sluice": {"policy": "hasty"}}
    try:
        client.chat.completions.create(model=MODEL, messages=STORY, extra_body=wrong)
    except openai.BadRequestError as error:
        assert error.param == "sluice" and "hasty" in error.message, error
    else:
        raise AssertionError("a policy that is not there was taken")


def only_autoregressive():
    if KIND != "autoregressive":
        refused("stop", stop=["END"])
        refused("top_p", top_p=0.5)
        return
    arguments = dict(model=MODEL, messages=STORY, max_tokens=24, seed=3, temperature=1)
    text = client.chat.completions.create(**arguments).choices[0].message.content
    # A model of random weights writes anything, also bytes that are no text.
    stop = next(character for character in text[2:] if character.isascii())
    stopped = client.chat.completions.create(stop=[stop, "no such text"], **arguments)
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == text.split(stop)[0]
    for top in (0, 3):
        told = client.chat.completions.create(
            logprobs=True, top_logprobs=top, **arguments
        ).choices[0]
        tokens = told.logprobs.content
        assert b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace") == text
        assert all(token.logprob <= 0 and len(token.top_logprobs) == top for token in tokens)
    streamed = []
    for chunk in client.chat.completions.create(
        logprobs=True, top_logprobs=3, stream=True, **arguments
    ):
        for choice in chunk.choices:
            if choice.logprobs and choice.logprobs.content:
                streamed += choice.logprobs.content
    assert [token.token for token in streamed] == [token.token for token in tokens]
    told = client.completions.create(
        model=MODEL, prompt="Once", max_tokens=6, seed=3, temperature=0, logprobs=2
    ).choices[0]
    assert len(told.logprobs.tokens) == len(told.logprobs.token_logprobs) > 0
    assert told.logprobs.text_offset[0] == 0


def forms():
    """Answers that match a schema."""
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["kite", "fox"]}, "count": {"type": "integer"}},
        "required": ["kind", "count"],
        "additionalProperties": False,
    }
    named = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    if KIND != "autoregressive":
        refused("response_format", response_format=named)
        return
    answer = client.chat.completions.create(
        model=MODEL,
        messages=STORY,
        max_tokens=200,
        seed=3,
        temperature=1,
        response_format=named,
    ).choices[0]
    assert answer.finish_reason == "stop", answer
    read = json.loads(answer.message.content)
    assert read["kind"] in ("kite", "fox") and isinstance(read["count"], int), read


def only_masked_diffusion():
    before, after = "Once upon a time there was a", " who had a red kite."
    arguments = dict(model=MODEL, prompt=before, suffix=after, max_tokens=6, seed=3)
    if KIND != "masked_diffusion":
        try:
            client.completions.create(**arguments)
        except openai.BadRequestError as error:
            assert error.param == "suffix", error
        else:
            raise AssertionError("a suffix was not refused")
        return
    whole = client.completions.create(**arguments)
    text = whole.choices[0].text
    assert text and after not in text and before not in text, text
    streamed = "".join(
        choice.text
        for chunk in client.completions.create(stream=True, **arguments)
        for choice in chunk.choices
    )
    assert streamed == text, (streamed, text)
    # It is between the two: sums of tokens tell.
    assert whole.usage.completion_tokens <= 6, whole.usage


async def gone():
    """Who goes away in the middle is not answered to the end."""
    other = openai.AsyncOpenAI(base_url=ADDRESS + "/v1", api_key="any", max_retries=0)
    stream = await other.chat.completions.create(
        model=MODEL, messages=STORY, max_tokens=64, stream=True
    )
    async for _ in stream:
        break
    await stream.close()
    await other.close()


def schema():
    """Each field of the package that is installed here is one that somebody decided on."""
    for create, base in [
        (client.chat.completions.create, chat_params.CompletionCreateParamsBase),
        (client.completions.create, text_params.CompletionCreateParamsBase),
    ]:
        for name in base.__annotations__:
            try:
                create_with_nothing(create, name)
            except openai.BadRequestError as error:
                assert "there is no such field" not in error.message, error


def create_with_nothing(create, name):
    arguments = {"model": MODEL, "extra_body": {"max_tokens": 1, name: None}}
    if create == client.completions.create:
        create(prompt="a", **arguments)
    else:
        create(messages=STORY, **arguments)


def main():
    for check in (
        models,
        chat,
        several,
        conversation,
        turns,
        calls,
        completions,
        refusals,
        own,
        only_autoregressive,
        forms,
        only_masked_diffusion,
        schema,
    ):
        check()
        print(f"openai {openai.__version__}: {check.__name__}")
    asyncio.run(gone())


if __name__ == "__main__":
    sys.exit(main())
