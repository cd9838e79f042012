"""Any text, document or bytes, as Hypothesis invents and shrinks them: what a reader refuses it refuses in our words, in this process.

The other trials change a whole file in one place. Here the input is small and everything about it is free, which suits what is parsed by
hand: rules, places, command lines, JSON and its schemas.
"""

import contextlib
import dataclasses
import io
import json
import os
from typing import Any

import pytest
from hostile.trial import FOREIGN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinkscope.cli import _parse
from sinkscope.commands import COMMANDS, find_command
from sinkscope.commands.arguments import check_arguments
from sinkscope.commands.bounds import check_bounds
from sinkscope.commands.sampler_flags import setting_types
from sinkscope.commands.trace import read_places, read_prompts
from sinkscope.decoding.caches.parsing import known_caches, parse_cache
from sinkscope.decoding.samplers import resolve_settings, settings_of
from sinkscope.documents import check_fields, parse_json
from sinkscope.errors import CallError, SinkscopeError, TraceError
from sinkscope.evaluation.cache_arms import read_arms, read_budgets
from sinkscope.evaluation.jobs import _read_options
from sinkscope.evaluation.result_schema import ResultsFile, RunFile, TaskFile
from sinkscope.interventions import parse_rule, split_rules
from sinkscope.interventions.rules import known_rules
from sinkscope.lab.texts import read_texts
from sinkscope.models import FAMILIES
from sinkscope.traces.manifest_schema import StatisticsManifest, TraceManifest

FULL = os.environ.get("HOSTILE") == "full"
many = settings(
    max_examples=2000 if FULL else 150,
    deadline=None,
    derandomize=not FULL,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

NUMBER = st.one_of(
    st.integers(),
    st.integers(-3, 40),
    st.floats(),
    st.sampled_from(["", "-", "+", "0-", "x", "1e9", "inf", "nan", "٣", "²"]),
)
WORD = st.sampled_from([*known_rules(), "none", "nosuch", ""])
OPTION = st.sampled_from(
    [*"current previous last_row only_sinks layers= steps= keys= queries= heads= seed= masked prompt share".split(), ""]
)
RULE = st.builds(
    lambda word, number, others, options: (
        f"{word}:{number}{others}@{','.join(options)}" if options else f"{word}:{number}{others}"
    ),
    WORD,
    NUMBER,
    st.sampled_from(["", "+1", "+x", ":"]),
    st.lists(
        st.builds(lambda option, numbers: option + "+".join(map(str, numbers)), OPTION, st.lists(NUMBER, max_size=3)),
        max_size=3,
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@contextlib.contextmanager
def in_our_words():
    """Let an error of ours through, if its message has no other library's words in it."""
    try:
        yield
    except SinkscopeError as error:
        assert not FOREIGN.search(str(error)), str(error)
        assert str(error).strip() and len(str(error)) < 4000


@many
@given(RULE | st.text(max_size=40))
def test_any_rule(text):
    with in_our_words():
        parse_rule(text)
    with in_our_words():
        for one in split_rules(text):
            assert one.strip() == one


CACHE = st.builds(
    lambda name, options: f"{name}:{','.join(options)}",
    st.sampled_from([*known_caches(), "none", "nosuch"]),
    st.lists(
        st.builds("{}={}".format, st.sampled_from(["every", "keep", "budget", "window", "x", ""]), NUMBER), max_size=3
    ),
)


@many
@given(CACHE | st.text(max_size=40))
def test_any_cache(text):
    with in_our_words():
        parse_cache(text)


@many
@given(
    st.lists(st.builds("{}@threshold={}".format, CACHE, NUMBER), max_size=3).map(",".join)
    | CACHE
    | st.text(max_size=40)
)
def test_any_list_of_caches(text):
    with in_our_words():
        read_arms(text, read_budgets("4,8"))
    with in_our_words():
        read_budgets(text)


@many
@given(
    st.builds(
        lambda places: ",".join(":".join(map(str, place)) for place in places), st.lists(st.lists(NUMBER, max_size=4))
    )
    | st.text()
)
def test_any_place_of_a_map(text):
    with in_our_words():
        for _step, layer, head in read_places(text, 3, 2):
            assert 0 <= layer < 3 and 0 <= head < 2


@many
@given(
    st.text(max_size=60) | st.lists(st.builds("{}={}".format, st.text(max_size=5), NUMBER), max_size=4).map(",".join)
)
def test_any_option_of_a_job(text):
    with in_our_words():
        _read_options(text)


@many
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode(errors="surrogatepass")))
def test_any_json(content):
    with in_our_words():
        json.dumps(parse_json(content, "here", TraceError)).encode()


LINE = st.one_of(
    st.binary(max_size=30).map(lambda some: some.replace(b"\n", b"")),
    JSON.map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")),
    st.builds(
        lambda key, value: json.dumps({key: value}).encode(), st.sampled_from(["prompt", "text", "answer"]), JSON
    ),
)


@many
@given(st.lists(LINE, max_size=4))
@pytest.mark.parametrize("reader", [read_prompts, lambda path: read_texts(path).documents], ids=["prompts", "texts"])
def test_any_json_lines(tmp_path, reader, lines):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"\n".join(lines))
    with in_our_words():
        assert len(reader(path)) <= len(lines)


SCHEMAS = (TraceManifest, StatisticsManifest, ResultsFile, RunFile, TaskFile)


@many
@given(st.data())
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.__name__)
def test_any_document_of_a_schema(schema, data):
    names = st.sampled_from([field.alias or name for name, field in schema.model_fields.items()])
    document: Any = data.draw(st.dictionaries(names, JSON, max_size=len(schema.model_fields)))
    with in_our_words():
        check_fields(document, schema, "here", TraceError)


@many
@given(st.data())
@pytest.mark.parametrize("family", FAMILIES)
def test_any_settings(family, data):
    kind = settings_of(FAMILIES[family].sampler)
    names = st.sampled_from([field.name for field in dataclasses.fields(kind)])
    values = st.one_of(st.integers(), st.integers(0, 64), st.floats(), st.booleans(), st.none(), st.text(max_size=6))
    with in_our_words():
        resolve_settings(FAMILIES[family], **data.draw(st.dictionaries(names, values, max_size=4)))


def words_of(name):
    """Return words that look like a command line of a command: its flags, other flags, and values of every kind."""
    names = [*(field.name for field in dataclasses.fields(find_command(name))), *setting_types()]
    flags = [f"--{name.replace('_', '-')}" for name in names]
    values = st.one_of(
        NUMBER.map(str),
        st.text(alphabet="ab-=,./ ", max_size=6),
        st.sampled_from(["lab-diffusion", "paper1", "bash", "x"]),
    )
    flag = st.sampled_from(
        [
            *flags,
            "--length",
            "--no-choice",
            "--nosuch",
            "--",
            "-x",
            *(f"{one}=" for one in flags),
            *(f"{one}=1" for one in flags),
        ]
    )
    return st.lists(flag | values, max_size=6)


@settings(many, max_examples=400 if FULL else 25)
@given(st.data())
@pytest.mark.parametrize("name", COMMANDS)
def test_any_command_line(name, data):
    """What the check lets through the parser takes too, but for words that only look like flags."""
    words, command = data.draw(words_of(name)), find_command(name)
    if {"-h", "--help"} & {*words}:
        return
    with in_our_words(), contextlib.redirect_stdout(io.StringIO()):
        try:
            check_arguments(command, words)
        except CallError:
            return
        check_bounds(_parse(command, name, words))
