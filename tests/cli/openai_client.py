"""Talks to a server with the official client of OpenAI's API, unmodified. Argument: its URL."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="secret", max_retries=0, timeout=60)
messages = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is a KV cache?"}]},
]
common = {"model": "tiny", "messages": messages, "max_tokens": 20, "seed": 7, "temperature": 0.8}

assert [model.id for model in client.models.list()] == ["tiny"]

whole = client.chat.completions.create(
    **common, n=2, top_p=0.95, logprobs=True, top_logprobs=2, extra_body={"top_k": 50, "vericache": {"draft_length": 4}}
)
assert len(whole.choices) == 2
choice = whole.choices[0]
assert choice.message.role == "assistant" and choice.message.content
assert choice.finish_reason == "length"
assert len(choice.logprobs.content) == 20 and len(choice.logprobs.content[0].top_logprobs) == 2
assert bytes(choice.logprobs.content[0].bytes) is not None
assert whole.usage.completion_tokens == 40
assert whole.usage.total_tokens == whole.usage.prompt_tokens + 40
assert choice.model_extra["vericache"]["rounds"] > 0

text = {0: "", 1: ""}
reasons = {}
usage = None
stream = client.chat.completions.create(
    **common, n=2, top_p=0.95, stream=True, stream_options={"include_usage": True}, extra_body={"top_k": 50}
)
for chunk in stream:
    for part in chunk.choices:
        text[part.index] += part.delta.content or ""
        reasons[part.index] = part.finish_reason or reasons.get(part.index)
    usage = chunk.usage or usage
assert text == {c.index: c.message.content for c in whole.choices}, "a stream gives the same text"
assert reasons == {0: "length", 1: "length"}
assert usage.completion_tokens == 40

old = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=5, temperature=0, logprobs=1)
assert [c.index for c in old.choices] == [0, 1]
assert len(old.choices[0].logprobs.tokens) == 5
pieces = client.completions.create(model="tiny", prompt="a", max_tokens=5, temperature=0, stream=True)
assert "".join(c.text for chunk in pieces for c in chunk.choices) == old.choices[0].text


def fails(kind, **request):
    try:
        client.chat.completions.create(**{**common, **request})
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected of {request}")


assert fails(openai.NotFoundError, model="gpt-4").code == "model_not_found"
assert fails(openai.BadRequestError, max_tokens=100_000).code == "context_length_exceeded"
assert fails(openai.BadRequestError, temperature=-1).param == "temperature"
client = client.with_options(api_key="wrong")
assert fails(openai.AuthenticationError).code == "invalid_api_key"

with openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="secret") as client:  # one that leaves
    for chunk in client.chat.completions.create(**{**common, "max_tokens": 400}, stream=True):
        break
