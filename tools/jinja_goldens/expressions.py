"""Small cases: expressions that are printed, and whole templates."""

CONTEXT = {
    "s": "Hello World", "u": "Größe 😀 ÉTÉ", "pad": "  \n a b \t", "empty": "", "n": 7, "neg": -7, "f": 2.5, "big": 1e20, "small": 0.00001,
    "t": True, "no": False, "null": None, "list": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "nested": [[1, 2], [3]],
    "d": {"b": 1, "a": [1, {"x": None}], "items": "shadowed", "C": "c"},
    "users": [{"name": "Zoe", "age": 30, "tags": ["x", "y"]}, {"name": "adam", "age": 25, "tags": []}, {"name": "Bea", "age": 30}],
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U1"}, {"role": "assistant", "content": "A"},
                 {"role": "user", "content": "U2"}],
    "html": "<a href=\"x\">'&'</a>", "lines": "one\ntwo\n\nthree\n", "quote": "it's \"so\"",
}

EXPRESSIONS = r"""
1
-1
+n
- n
1.0
1e3
1.5e-7
1_000
0x1F
0b101
0o17
big
small
f
1e16
123456789012345680.0
0.1 + 0.2
true
False
none
"a" "b"
'it\'s'
"tab\tnew\nline \\ \x41 \u00e9 \U0001F600 \101 \q"
[1, 2.0, "x", none, true]
[1, 2,]
[]
{}
{"a": 1, 'b': [2]}
{1: "int", 1.0: "same", true: "again"}
(1, 2)
(1,)
()
1, 2
quote
[quote, "it's", 'say "x"', "new\nline", "\u200b", "é", "\x7f"]
n + 1
n - 10
n * 2
n / 2
n // 2
neg // 2
n % 4
neg % 4
n % -4
f % 2
-f // 1
f // 0.3
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
2 ** 0.5
1 / 3
7 // 2 * 2 + 7 % 2
1 + 2 * 3 - 4 / 2
(1 + 2) * 3
t + t
t * 3
"a" + "b"
"a" ~ 1 ~ none ~ 2.0 ~ true
1 ~ 2 + 3
"ab" * 3
3 * "ab"
"ab" * -1
[1] + [2]
[0] * 3
(1,) + (2,)
"a" + 1
[1] + (2,)
none + 1
undefined_thing + 1
undefined_thing
undefined_thing ~ "x"
undefined_thing.attribute
undefined_thing["item"]
undefined_thing()
undefined_thing | length
undefined_thing | upper
undefined_thing | list
undefined_thing | join(",")
undefined_thing == undefined_other
undefined_thing == none
not undefined_thing
1 in undefined_thing
undefined_thing | tojson
undefined_thing | default("d")
undefined_thing | int
undefined_thing < 1
undefined_thing[:2]
none.x
none | default("d")
empty | default("d")
empty | default("d", true)
empty | d("d", boolean=true)
no | default("d", true)
d.missing
d.missing is undefined
d.missing.more
d["missing"] is defined
d.b
d["b"]
d.a[1].x
d.a[1]["x"] is none
d.items is callable
d["items"]
d.items() | list
d.keys() | list
d.values() | list
d.get("b")
d.get("zz")
d.get("zz", 5)
d.items() | length
d | length
d | list
d
d.a.0
list[0]
list[-1]
list[5]
list[5] is undefined
list["0"]
list[1:]
list[:-1]
list[::-1]
list[::2]
list[-2:]
list[5:]
list[2:0:-1]
list[none:2]
s[0]
s[-1]
s[1:4]
s[::-1]
s[::3]
u[0:5]
u[6]
u[::-1]
s[100:]
(1, 2, 3)[1:]
s.foo
s.foo is undefined
list.append
list.append(1)
d.update({})
s.__class__
1 == 1.0
1 == true
"1" == 1
"a" < "b"
"a" < 1
1 < 2 < 3
1 < 3 < 2
1 <= 1 >= 1
[1, 2] < [1, 3]
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{"a": 1} == {"a": 1.0}
none == none
none < 1
1 in list
5 not in list
"ell" in s
"x" not in s
"b" in d
1 in s
"a" in ["a"]
not 1 in list
t and no
t or no
0 or "x"
"" and "x"
1 and 2
not t
not not t
not t == no
1 if t
1 if no
1 if no else 2
"a" if no else "b" if t else "c"
n is defined
n is number and f is number and t is number
n is integer, t is integer, f is integer, f is float, n is float
s is string, n is string
d is mapping, list is mapping
list is sequence, s is sequence, d is sequence, n is sequence
list is iterable, s is iterable, d is iterable, n is iterable, undefined_thing is iterable
t is boolean, n is boolean
t is true, 1 is true, no is false, 0 is false
null is none, n is none
n is odd, n is even
n is divisibleby 7, n is divisibleby(2)
n is eq 7, n is equalto(7), n is ne 7, n is gt 6, n is ge(8), n is lt 8, n is le 7
n is not number
s is not defined
1 is in list
3 is in([1, 2])
"abc" is lower, "ABC" is upper, "aB" is lower, "1" is lower
s is sameas s
range is callable, s is callable
"upper" is filter, "nope" is filter, "odd" is test
s is nosuchtest
s | nosuchfilter
s | upper
s | lower
u | upper
u | lower
u | length
"hELLO wORLD-foo (bar)" | title
"hELLO wORLD" | capitalize
"ßa" | upper
pad | trim
"xxaxx" | trim("x")
s | replace("l", "L")
s | replace("l", "L", 1)
"abc" | replace("", "-")
1123 | replace(1, "x")
s | first
s | last
[] | first
[] | first is undefined
[] | last
list | first
list | last
list | sort
list | sort(reverse=true)
words | sort
words | sort(case_sensitive=true)
users | sort(attribute="age") | map(attribute="name") | list
users | sort(attribute="age,name") | map(attribute="name") | list
users | sort(attribute="name", reverse=true) | map(attribute="name") | join(" ")
[1, "a"] | sort
words | unique | list
words | unique(case_sensitive=true) | list
list | reverse | list
s | reverse
list | join
list | join("-")
users | join(", ", attribute="name")
[none, 1.0, true] | join("|")
list | sum
list | sum(start=10)
users | sum(attribute="age")
["a", "b"] | sum
list | max
list | min
words | max
words | min
words | min(case_sensitive=true)
users | max(attribute="age")
[] | max
users | map(attribute="name") | list
users | map(attribute="tags.0") | list
users | map(attribute="tags", default="-") | list
words | map("upper") | list
words | map("replace", "p", "P") | list
words | map("length") | list
list | map("string") | join
users | selectattr("tags") | map(attribute="name") | list
users | selectattr("age", "equalto", 30) | map(attribute="name") | list
users | selectattr("age", "gt", 26) | list | length
users | rejectattr("age", "equalto", 30) | list
users | selectattr("tags", "defined") | list | length
list | select("odd") | list
list | select("gt", 1) | list
list | reject("odd") | list
[0, 1, "", "x", none] | select | list
[0, 1, "", "x", none] | reject | list
(list | select("odd")) | length
messages | selectattr("role", "equalto", "nobody") and "always true"
users | groupby("age") | length
d | dictsort
{"x": 2, "Y": 1} | dictsort(by="value")
{"x": 2, "Y": 1} | dictsort(true)
{"x": 2, "Y": 1} | dictsort(reverse=true)
{"x": 2} | items | list
undefined_thing | items | list
1 | items | list
list | batch(2) | list
list | batch(2, 0) | list
[1, 2, 3, 4, 5] | slice(2) | list
[1, 2, 3, 4, 5] | slice(3, "-") | list
"42" | int
"4x2" | int
"4x2" | int(5)
"3.9" | int
3.9 | int
-3.9 | int
" 12 " | int
"1_000" | int
"ff" | int(0, 16)
"0x1f" | int(base=16)
none | int
"3.5" | float
"x" | float
"x" | float(1.5)
3 | float
"1e3" | float
-3 | abs
-3.5 | abs
2.5 | round
3.5 | round
2.567 | round(2)
2.5 | round(method="ceil")
2.1 | round(0, "floor")
2.1234 | round(2, "ceil")
7 | round
n | string
f | string
none | string
list | string
d | string
s | list
d | tojson
list | tojson
u | tojson
html | tojson
"\u2028\x00\x1f\x7f\"\\/" | tojson
[1.0, 1e20, 0.1, -0.0, 1e-7] | tojson
{"a": none, "b": true, "c": {}} | tojson
d | tojson(indent=2)
[] | tojson(indent=2)
{"a": [], "b": {}} | tojson(indent=4)
{"z": 1, "a": 2} | tojson(sort_keys=true)
{"z": 1, "a": [1, 2]} | tojson(separators=(",", ":"))
"é😀" | tojson(ensure_ascii=true)
{1: 2, none: 3, true: 4, 1.5: 5} | tojson
(1, 2) | tojson
range(3) | tojson
html | escape
html | e
html | safe
lines | indent
lines | indent(2)
lines | indent(2, true)
lines | indent(2, blank=true)
lines | indent(width="> ")
lines | wordcount
"a b" | urlencode
"abc" | center(9) ~ "|"
"abcd" | center(9) ~ "|"
"foo bar baz qux" | truncate(9)
"foo bar baz qux" | truncate(9, true)
"foo bar baz qux" | truncate(11)
"foo bar baz qux" | truncate(11, false, "...", 0)
"%s is %d and %.2f" | format("x", 3, 1.5)
"%5s|%-5s|%05d|%+d|%x|%%" % ("a", "b", 42, 7, 255)
"%s" % "one"
"%s" % none
"%s %s" % (1,)
d | attr("b")
s.split()
pad.split()
"a,b,,c".split(",")
"a,b,,c".split(",", 1)
"a b  c d ".split(none, 2)
" a b  c".rsplit(none, 1)
"a,b,c".rsplit(",", 1)
"abc".split("")
"</think>x</think>y".split("</think>")[-1]
lines.splitlines()
lines.splitlines(true)
"a\r\nb\rc".splitlines()
pad.strip()
pad.lstrip() ~ "|"
"|" ~ pad.rstrip()
"xyhixyx".strip("xy")
"\n\nhi\n".lstrip("\n")
"hi\n\n".rstrip("\n") ~ "|"
"\u00a0x\u3000".strip()
s.startswith("He")
s.startswith(("x", "H"))
s.endswith("ld")
s.upper()
s.lower()
"they're bill's".title()
u.title()
"hELLO".capitalize()
s.replace("o", "0")
s.replace("o", "0", 1)
s.find("o")
s.find("zz")
u.find("😀")
s.find("o", 5)
s.rfind("o")
s.index("W")
s.index("zz")
s.count("l")
"aaa".count("aa")
"abc".count("")
",".join(["a", "b"])
",".join(words[:2])
",".join([1])
"{} and {}".format(1, "b")
"{1} {0} {x}".format("a", "b", x=3)
"{{}}".format()
"123".isdigit(), "12a".isdigit(), "".isdigit()
"abc".isalpha(), "ab1".isalnum(), " \t".isspace()
"abc".islower(), "ABC".isupper()
"prefix-x".removeprefix("prefix-"), "x.py".removesuffix(".py")
"a=b=c".partition("="), "a=b=c".rpartition("="), "abc".partition("=")
"7".rjust(3, "0"), "7".ljust(3) ~ "|"
list.index(1), list.count(3)
range(5) | list
range(2, 5) | list
range(10, 0, -3) | list
range(0) | list
range(3)
range(200000) | length
range(1, 10)[2]
dict(a=1, b="x")
dict({"z": 1}, a=2)
namespace(a=1).a
namespace(a=1).b
strftime_now("%Y-%m-%d")
strftime_now("%d %b %Y, %H:%M:%S %A %j")
raise_exception("a message with 'quotes' and ünïcode")
cycler("a", "b").next()
joiner("|")()
s.upper().lower()[0:3] | upper
(s | upper)[0]
[1, 2][0] + {"a": 5}["a"]
"a" is string and "b" in "abc" or no
n > 5 and n < 10
n in [1, 7] and "x" ~ n
"x" if n > 5 and not no else "y"
loop
messages | length
messages[-1].content
messages[-1]["role"] == "user"
messages[1:][0].content
messages[::-1] | map(attribute="role") | join(",")
messages | selectattr("role", "equalto", "user") | map(attribute="content") | list
messages | rejectattr("role", "in", ["system", "user"]) | map(attribute="content") | first
(messages | selectattr("role", "equalto", "user") | list)[-1].content
{"role": "x", **d}
1 +
foo bar
"unterminated
[1, 2
(1, 2]
1 2
a.
a[
9223372036854775807
nested | sum(start=[])
[[1, [2, [3]]], {"a": {"b": {"c": []}}}]
"a\
b"
1.__class__
"" ~ [] ~ {} ~ ()
"%d%%" % 5
f | int ~ "x"
-f | abs
-1 | abs
words | map("first") | join
"a" == "a" == "a"
s is in ["Hello World"]
d.a is iterable and d.a is not string and d.a is not mapping
"é" < "z"
"Z" < "a"
"x" * 0 == ""
u.split(" ")[1]
"\ud83d" | length
""".strip("\n").replace('"a\\\nb"', '"a\\\\\\nb"').split("\n")

TEMPLATES = [
    "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }};{% endfor %}",
    "{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in list %}{{ loop.previtem is defined }}{{ loop.nextitem is undefined }}{% endfor %}",
    "{% for x in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in [] %}x{% else %}none{% endfor %}",
    "{% for x in undefined_thing %}x{% else %}none{% endfor %}",
    "{% for x in null %}x{% endfor %}",
    "{% for x in 5 %}x{% endfor %}",
    "{% for c in 'añ😀' %}[{{ c }}]{% endfor %}",
    "{% for k in d %}{{ k }},{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in {'a': 1}|items %}{{ k }}={{ v }};{% endfor %}",
    "{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{{ a }}{% endfor %}",
    "{% for a, b in [1] %}{{ a }}{% endfor %}",
    "{% for x in range(10) if x is odd %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}",
    "{% for x in range(10) if x > 20 %}x{% else %}nothing{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1, 2] %}{% for y in [3, 4] %}{% if y == 4 %}{% break %}{% endif %}{{ x }}{{ y }}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in [1,2,3] %}{% if loop.last %}!{% endif %}{% if not loop.first %},{% endif %}{{ x }}{% endfor %}",
    "{% for x in list recursive %}{{ x }}{% endfor %}{{ 'recursive loops are refused here' }}",
    "{% if n > 10 %}a{% elif n > 5 %}b{% elif n > 1 %}c{% else %}d{% endif %}",
    "{% if no %}a{% elif null %}b{% else %}d{% endif %}",
    "{% if undefined_thing %}a{% endif %}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in [1, 2] %}{% if y is defined %}old{% endif %}{% set y = i %}{% endfor %}{{ y is defined }}",
    "{% set ns = namespace(x=1) %}{% for i in list %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = ns.a %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}",
    "{% set ns = namespace({'q': 4}, z=2) %}{{ ns.q }}{{ ns.z }}",
    "{% set d.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% set a, b = [1] %}",
    "{% set a = 1, 2 %}{{ a }}",
    "{% set x %}one {{ n }}{% endset %}[{{ x }}]{{ x is string }}",
    "{% set x | upper %}one {{ n }}{% endset %}[{{ x }}]",
    "{% set x | replace('o', '0') | trim %} one {% endset %}[{{ x }}]",
    "{% set messages = messages[1:] %}{{ messages[0].content }}{{ messages | length }}",
    "{% set x = none %}{{ x is none }}{{ x is defined }}",
    "{% macro f(a, b=2, c=a) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=5, a=4) }}{{ f() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, b=2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}",
    "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ f() }}{% set x = 2 %}{{ f() }}",
    "{% macro f() %}{% set x = 5 %}{{ x }}{% endmacro %}{{ f() }}{{ x is defined }}",
    "{% macro f() %}{% if n is defined %}{{ n }}{% endif %}{% if q is not defined %}{% set q = 'Q' %}{% endif %}{{ q }}{% endmacro %}{{ f() }}",
    "{% for i in [1, 2] %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% for i in [1] %}{% macro f() %}{{ loop is defined }}{% endmacro %}{{ i }}{% endfor %}",
    "{% macro f() %}  x  {% endmacro %}[{{ f() | trim }}]{{ f() | length }}",
    "{% macro f(a) %}<{{ a }}>{{ caller() }}</{{ a }}>{% endmacro %}{% call f('b') %}text {{ n }}{% endcall %}",
    "{% macro f() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) f() %}{{ a + b }}{% endcall %}",
    "{% macro f() %}x{% endmacro %}{{ f.name }}{{ f is callable }}",
    "{% filter upper %}abc {{ s }}{% endfilter %}",
    "{% filter replace('a', 'b') | upper %}aa{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}",
    "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
    "{% raw %}{{ not }} {% parsed %} {# at all #}{% endraw %}!",
    "{% raw -%}   x   {%- endraw %}  y",
    "a\n  {% raw %}\n x \n  {% endraw %}\nb",
    "{% generation %}a{{ n }}{% endgeneration %}b",
    "a {# comment #} b",
    "a {#- comment -#} b",
    "a\n  {# comment #}\nb",
    "{# {{ not }} {% this %} #}x",
    "{#-#}x",
    "  {% if true %}\n    x\n  {% endif %}\n  y",
    "  {%- if true -%}\n    x\n  {%- endif -%}\n  y",
    "  {%+ if true +%}\n    x\n  {%+ endif +%}\n  y",
    "x {% if true %} y {% endif %} z",
    "x\n\n\t {% if true %}\n\n y{% endif %}\n\n z",
    "{{ n }}\n{{ n }}\n",
    "{{ n -}}  \n  {{- n }}",
    "  {{ n }}",
    "  {{+ n }}",
    "x\n",
    "x\n\n",
    "\n\nx",
    "a\r\nb\rc\n",
    "{% if true %}a\r\n{% endif %}\r\nb",
    "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ {'a': {'b': 1}} }}",
    "{{ '}}' }}{{ '%}' }}{{ \"{{\" }}",
    "{%for x in list%}{{x}}{%endfor%}",
    "{% for x in list -%}\n  {{ x }}\n{%- endfor %}",
    "{% for g in users | groupby('age') %}{{ g.grouper }}:{{ g.list | length }} {% endfor %}",
    "{% for age, people in users | groupby('age') %}{{ age }}={{ people | map(attribute='name') | join('+') }};{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}",
    "{% set j = joiner() %}{% for x in list %}{{ j() }}{{ x }}{% endfor %}",
    "{% do list.append(1) %}",
    "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{% extends 'x' %}",
    "{% unknown %}",
    "{% if true %}",
    "{% endif %}",
    "{% for x in list %}{% endif %}",
    "{{ n",
    "{% if n",
    "{# no end",
    "{% raw %}no end",
    "{% set true = 1 %}",
    "{% break %}",
    "{{ }}",
    "text only",
    "",
    "{ { } } {a} %} }} #}",
    "{% if messages[0]['role'] == 'system' %}{% set sys = messages[0]['content'] %}{% endif %}{{ sys }}",
    "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ (m.content | trim) ~ ('\\n' if not loop.last) }}{% endfor %}",
    "{% for m in messages if m.role != 'system' %}{{ m.content }}{{ ', ' if not loop.last else '.' }}{% endfor %}",
    "{% for m in messages %}{% if loop.previtem and loop.previtem.role == 'user' %}after user: {{ m.role }} {% endif %}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% if m.role == 'assistant' %}{% set ns.found = true %}{% break %}{% endif %}{% endfor %}{{ ns.found }}",
    "{{ bos_token }}{{ bos_token if bos_token is defined else 'no bos' }}",
    "{% if not x is defined %}a{% endif %}{% if x is not defined and not y %}b{% endif %}",
    "{{ 'a' if messages | length > 3 and messages[0].role == 'system' else 'b' }}",
    "{%- set ns = namespace(a='', b=[]) -%}{%- for m in messages -%}{%- set ns.a = ns.a ~ m.role[0] -%}{%- set ns.b = ns.b + [m.role] -%}{%- endfor -%}{{ ns.a }} {{ ns.b }}",
    "{% set x = [1, 2] %}{% set y = x + [3] %}{{ x }}{{ y }}",
    "{{ range(3) | map('string') | list }}{% for i in range(3) | reverse %}{{ i }}{% endfor %}",
    "line one\n{{ undefined_thing.x }}",
    "{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(0) if false else 'not called' }}",
    "{% set loop_messages = messages %}{% for m in loop_messages[loop_start:] %}{{ m.role }}{% endfor %}",
    "{% for m in messages %}{% for c in m.content %}{{ loop.index }}{{ c }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{{ messages | tojson }}",
    "{{ users | tojson(indent=1) }}",
    "{{- '' -}}   x   {{- '' -}}",
    "{% if '<think>' in 'a<think>b' %}{{ 'a<think>b'.split('<think>')[-1].rstrip('\\n').lstrip() }}{% endif %}",
    "{% set content = [{'type': 'text', 'text': 'T'}, {'type': 'image'}] %}{% if content is string %}s{% else %}{% for p in content %}{% if p.type == 'text' %}{{ p.text }}{% elif p['type'] == 'image' %}<img>{% endif %}{% endfor %}{% endif %}",
    "{% set tool_call = {'function': {'name': 'f', 'arguments': {'a': 1}}} %}{% if tool_call.function is defined %}{% set tool_call = tool_call.function %}{% endif %}{{ tool_call.name }}({% for k, v in tool_call.arguments | items %}{{ k }}={{ v if v is string else v | tojson }}{% endfor %})",
]
