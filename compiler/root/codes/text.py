"""Codes 1xx: what is wrong with a text before it means anything."""

from __future__ import annotations

from dsv41c.codes.code import Code

CODES: tuple[Code, ...] = (
    Code(
        "DSV101",
        "invalid-yaml",
        "error",
        "the text is not valid YAML, or a config not valid JSON",
        "The parser could not make sense of the text at this place. The fault is often a line or two above: a\n"
        "missing colon, an entry that is indented differently from its neighbours, a bracket or a quote that is\n"
        "not closed.\n"
        "\n"
        "Nothing after this place was read, so there may be more findings once it is mended.",
        bad="extends: toy\nlayers: {kv_source_layers: [2, 5}\n",
        good="extends: toy\nlayers: {kv_source_layers: [2, 5]}\n",
    ),
    Code(
        "DSV102",
        "not-utf-8",
        "error",
        "the file is not UTF-8 text",
        "Specs and configs are UTF-8. Other encodings would make columns, and sometimes values, differ from what\n"
        "the editor shows. Save the file as UTF-8; if it should not be text at all, check that the path is right.",
    ),
    Code(
        "DSV103",
        "strange-character",
        "error",
        "the text holds a control character",
        "Control characters, unusual line ends (U+0085, U+2028, U+2029) and lone surrogates are refused: editors,\n"
        "YAML and this tool would count lines differently, and findings would point to the wrong place. Remove\n"
        "the character, or write it as an escape (`\\x1b`) in a double-quoted string.",
    ),
    Code(
        "DSV104",
        "byte-order-mark",
        "error",
        "the text starts with a byte order mark",
        "A byte order mark is invisible and shifts columns. Save the file as plain UTF-8, without BOM.",
    ),
    Code(
        "DSV105",
        "tab-indentation",
        "error",
        "a tab stands where YAML takes only spaces",
        "YAML does not allow tabs in indentation, because their width is a matter of opinion. Indent with spaces.",
        bad="extends: toy\nmodel:\n\tn_mtp_layers: 0\n",
        good="extends: toy\nmodel:\n  n_mtp_layers: 0\n",
    ),
    Code(
        "DSV106",
        "duplicate-key",
        "error",
        "a key is given twice in one map",
        "Most YAML readers silently take the last one. Here it is an error: one of the two values would be lost,\n"
        "and nobody would see which. Keep one.",
        bad="extends: toy\nruntime:\n  max_sessions: 2\n  max_sessions: 4\n",
        good="extends: toy\nruntime:\n  max_sessions: 4\n",
    ),
    Code(
        "DSV107",
        "explicit-tag",
        "error",
        "a value has a YAML tag",
        "Tags such as `!!python/object` tell some readers to build arbitrary objects. Values here are plain:\n"
        "numbers, text, lists and maps. Remove the tag; quote a value that should be text.",
        bad="extends: toy\nname: !!str toy2\n",
        good="extends: toy\nname: toy2\n",
    ),
    Code(
        "DSV108",
        "merge-key",
        "error",
        "the merge key `<<` is used",
        "`<<` is an extension of YAML 1.1 that YAML 1.2 dropped. Write the entries out, or use `extends` to start\n"
        "from another spec; plain aliases (`*name`) work.",
        bad="extends: toy\nruntime:\n  <<: {max_sessions: 2}\n",
        good="extends: toy\nruntime:\n  max_sessions: 2\n",
    ),
    Code(
        "DSV109",
        "key-not-text",
        "error",
        "a key is a list, a map or an alias",
        "Keys are text. This also appears where a template left `{{ braces }}` behind. Quote the key if it is\nmeant.",
        bad="extends: toy\n[name]: toy2\n",
        good="extends: toy\nname: toy2\n",
    ),
    Code(
        "DSV110",
        "several-documents",
        "error",
        "the file holds more than one YAML document",
        "A `---` in the middle of a file starts another document. A file is one spec; keep the others in their\n"
        "own files.",
        bad="extends: toy\n---\nname: toy2\n",
        good="extends: toy\nname: toy2\n",
    ),
    Code(
        "DSV111",
        "text-too-large",
        "error",
        "the text is larger than any spec",
        "A spec is a few kilobytes. The limit keeps a wrong path (a weights file, a log) from being read whole.",
    ),
    Code(
        "DSV112",
        "nested-too-deep",
        "error",
        "values are nested deeper than any spec",
        "A spec is at most five levels deep. The limit keeps hostile texts from exhausting the stack.",
        bad="extends: toy\nname: " + "[" * 40 + "]" * 40 + "\n",
        good="extends: toy\nname: toy2\n",
    ),
    Code(
        "DSV113",
        "too-many-values",
        "error",
        "the text expands to too many values",
        "Aliases repeat whole values, and aliases of aliases multiply: nine lines can stand for billions of\n"
        "values. Both what is written and what aliases expand to are counted.",
        bad="extends: toy\n"
        "a: &a [0,0,0,0,0,0,0,0,0,0]\n"
        "b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
        "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n"
        "f: [*e,*e,*e]\n",
        good="extends: toy\n",
    ),
    Code(
        "DSV114",
        "integer-too-large",
        "error",
        "an integer does not fit in 64 bits",
        "No size of a model comes near 2^63. Such a number is a slip of the keyboard, or an attempt to make\n"
        "something allocate without bound.",
        bad="extends: toy\nmodel: {vocab_size: 1000000000000000000000000000000}\n",
        good="extends: toy\nmodel: {vocab_size: 512}\n",
    ),
    Code(
        "DSV115",
        "number-not-finite",
        "error",
        "a number is NaN or infinite",
        "NaN and infinity pass many range checks and then spread through every result. `1e999` is infinite too,\n"
        "because it does not fit in a double.",
        bad="extends: toy\nmoe: {swiglu_limit: .nan}\n",
        good="extends: toy\nmoe: {swiglu_limit: 2.0}\n",
    ),
    Code(
        "DSV116",
        "unknown-anchor",
        "error",
        "an alias has no anchor before it",
        "`*name` repeats the value marked `&name`, which must stand above it and must not contain the alias\nitself.",
        bad="extends: toy\nlayers: {engram_layers: *both}\n",
        good="extends: toy\nlayers: {engram_layers: &both [1, 4]}\n",
    ),
    Code(
        "DSV117",
        "unreadable-file",
        "error",
        "a file cannot be read",
        "The operating system refused, or the path leads to a folder, a pipe, a socket or a device; the reason is\n"
        "in the message. A named pipe is not waited for, and a device has no end: give the text on standard input,\n"
        "as `-`, which a shell connects to anything. Otherwise check the path and its permissions.",
    ),
    Code(
        "DSV118",
        "empty-text",
        "error",
        "the text is empty",
        "There is nothing but comments and blank lines. Start from a shipped spec with `extends: toy`, or copy\none.",
        bad="# nothing here\n",
        good="extends: toy\n",
    ),
    Code(
        "DSV130",
        "graph-text-unreadable",
        "error",
        "the text form of a graph has a line that is neither an input nor an op",
        "`dsv41c graph SPEC --format text` prints a graph with one line an input or op, after a first line that\n"
        "names the format. The line named here is not of that form, or uses a kind of op or value that does not\n"
        "exist.",
    ),
)
