"""Renders the template cases with Python's Jinja2, set up as Hugging Face's apply_chat_template sets it up."""

import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

from expressions import CONTEXT, EXPRESSIONS, TEMPLATES

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "text"
NOW = datetime.datetime(2025, 3, 9, 8, 7, 6)


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the model wrote; the text is unchanged."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


WEATHER = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place, in °C or °F.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City & country, as \"Köln, DE\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "limit": {"type": ["integer", "null"], "default": 3},
    }, "required": ["place"]}}}]
NESTED = WEATHER + [{"type": "function", "function": {
    "name": "book", "description": "Books <something>",
    "parameters": {"type": "object", "properties": {
        "when": {"oneOf": [{"type": "string", "description": "a date"}, {"type": "number", "default": 1.5}]},
        "who": {"type": "object", "properties": {"name": {"type": "string", "nullable": True}, "age": {"type": "integer"}},
                "required": ["name"]},
        "extra": {"type": "array"},
        "long": {"type": "array", "items": {"type": "object", "properties": {
            "a_rather_long_name": {"type": "string"}, "another_long_name": {"type": "boolean"}}}},
        "either": {"oneOf": [{"type": "object"}, {"type": "string"}]},
        "any": {},
    }}}}, {"type": "function", "function": {"name": "ping", "description": "No arguments", "parameters": {"type": "object", "properties": {}}}}]
TOOLS = {"weather": WEATHER, "nested": NESTED}


def call(name, arguments, identity="abc123XYZ"):
    return {"type": "function", "id": identity, "function": {"name": name, "arguments": arguments}}


U, A, S = (lambda text, role=role: {"role": role, "content": text} for role in ("user", "assistant", "system"))
CONVERSATIONS = {
    "one": [U("Hello")],
    "empty_content": [U("")],
    "system": [S("Be brief."), U("What is 2+2?")],
    "turns": [U("Hi"), A("Hello!"), U("And now?"), A("Now that."), U("Fine")],
    "system_turns": [S("You answer in\ntwo lines.\n"), U("Hi"), A("  Hello!\n"), U("Bye")],
    "late_system": [U("Hi"), S("New rule"), U("Go on")],
    "ends_with_assistant": [U("Count"), A("1, 2, 3")],
    "unicode": [U("Größe 😀 日本語 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 e\u0301 \t<b>&amp;\"quotes\" 'single' \\n \u200b|")],
    "think": [U("Why?"), A("<think>\nBecause I\nthink\n</think>\n\nSo it is."), U("Really?"), A("<think>\n\n</think>\n\nYes"), U("ok")],
    "reasoning": [U("Why?"), dict(A("So."), reasoning_content="First\nthis"), U("Then?"), dict(A("Done."), reasoning_content="\nsecond\n")],
    "thinking_last": [U("Why?"), dict(A("So."), thinking="I wonder")],
    "tool_call": [U("Weather in Köln?"), {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"place": "Köln", "days": [1, 2]})]},
                  {"role": "tool", "content": "{\"t\": 12.5}", "tool_call_id": "abc123XYZ"}],
    "tool_answer": [S("Use tools."), U("Weather?"), {"role": "assistant", "content": "", "tool_calls": [call("get_weather", {"place": "A"})]},
                    {"role": "tool", "content": "rain", "tool_call_id": "abc123XYZ"}, A("It rains."), U("Thanks")],
    "two_calls": [U("Both"), {"role": "assistant", "content": "On it.", "tool_calls": [
        call("get_weather", {"place": "X", "f": 1.0, "n": None, "b": True}), call("ping", {}, "def456UVW")]},
        {"role": "tool", "content": "sun", "tool_call_id": "abc123XYZ"}, {"role": "tool", "content": "pong", "tool_call_id": "def456UVW"}],
    "string_arguments": [U("Weather?"), {"role": "assistant", "content": None, "tool_calls": [call("get_weather", "{\"place\": \"Köln\"}")]},
                         {"role": "tool", "content": "rain", "tool_call_id": "abc123XYZ"}],
    "string_arguments_two": [U("Both"), {"role": "assistant", "content": None, "tool_calls": [
        call("a", "{\"x\": 1}"), call("b", "{}")]}, {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, A("Done"), U("ok")],
    "tool_call_thinking": [U("Go"), {"role": "assistant", "thinking": "need a tool", "tool_calls": [call("ping", {})]},
                           {"role": "tool", "content": {"ok": True}}],
    "orphan_tool": [U("Go"), {"role": "tool", "content": "x", "tool_call_id": "abc123XYZ"}],
    "wrong_order": [U("a"), U("b")],
    "assistant_first": [A("a"), U("b")],
    "channel_tags": [U("a"), A("<|channel|>final<|message|>x"), U("b")],
    "bad_id": [U("Go"), {"role": "assistant", "tool_calls": [call("ping", {}, "short")]}],
    "parts": [U("a"), U([{"type": "text", "text": "b"}]), U("c")],
    "none": [],
}
TOKENS = {
    "qwen3": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "deepseek_v3": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "mixtral": {"bos_token": "<s>", "eos_token": "</s>"},
    "mistral_tools": {"bos_token": "<s>", "eos_token": "</s>"},
    "mistral_nemo": {"bos_token": "<s>", "eos_token": "</s>"},
    "harmony": {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"},
    "generation_and_break": {},
}
EXTRA = {
    "qwen3": [{"enable_thinking": False}, {"enable_thinking": True}],
    "harmony": [{"reasoning_effort": "high", "builtin_tools": ["browser", "python"]}, {"model_identity": "You are Q."}],
}


def render(env, source, context):
    try:
        return {"expect": env.from_string(source).render(**context)}
    except jinja2.exceptions.TemplateError as e:
        kind = "raised" if type(e) is jinja2.exceptions.TemplateError else "error"
        return {kind: str(e)}
    except Exception as e:  # what Python itself refuses
        return {"error": str(e)}


def chat_cases(env):
    cases = []
    for name, tokens in TOKENS.items():
        source = (DATA / "chat_templates" / (name + ".jinja")).read_text(encoding="utf-8")
        for conversation, messages in CONVERSATIONS.items():
            variants = [(None, True, {}), (None, False, {})]
            if conversation in ("system", "turns", "tool_call", "tool_answer", "two_calls"):
                variants += [("weather", True, {})]
            if conversation == "one":
                variants += [("nested", True, {})]
            if conversation in ("one", "think", "reasoning"):
                variants += [(None, True, extra) for extra in EXTRA.get(name, [])]
            for tools, prompt, extra in variants:
                context = dict(messages=messages, tools=TOOLS.get(tools), documents=None, add_generation_prompt=prompt, **tokens)
                context.update(extra)
                case = {"template": name, "conversation": conversation, "tools": tools, "prompt": prompt, "extra": extra}
                cases.append({**case, **render(env, source, context)})
    return cases


def dump(name, value):
    lines = []
    for key, part in value.items():
        if isinstance(part, list):
            body = ",\n".join(json.dumps(row, ensure_ascii=False) for row in part)
            lines.append(json.dumps(key) + ": [\n" + body + "\n]")
        else:
            lines.append(json.dumps(key) + ": " + json.dumps(part, ensure_ascii=False))
    (DATA / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main():
    env = environment()
    cases = chat_cases(env)
    now = list(NOW.timetuple()[:6])
    dump("chat_cases.json", {"now": now, "tokens": TOKENS, "tools": TOOLS, "conversations": CONVERSATIONS, "cases": cases})
    sources = ["{{ " + e + " }}" for e in EXPRESSIONS] + TEMPLATES
    small = [{"source": s, **render(env, s, CONTEXT)} for s in sources]
    dump("jinja_cases.json", {"now": now, "context": CONTEXT, "cases": small})
    errors = sum("expect" not in c for c in cases + small)
    print(f"{len(cases)} chat cases, {len(small)} small cases, {errors} of them errors")


main()
