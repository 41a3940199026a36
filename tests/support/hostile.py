"""Texts that try to be more than text: for names and labels in tests of tables, queries, pages, metrics and jobs."""

from __future__ import annotations

MARKUP = (
    "<script>window.owned=1</script>",
    "</script><script>window.owned=1</script>",
    "\"><img src=x onerror='window.owned=1'>",
    '<b>bold</b> & <a href="javascript:window.owned=1">x</a>',
    "%{x} ${window.owned=1} {{plotly}} &lt;i&gt;",
    "\u202eegnaro\u2066 \u200bnul\x00 \x1b[31m",
    "]]> --> <!-- <svg onload=window.owned=1>",
)
REPLACED = (  # by Spark in SQL and settings, by templates and formats
    "${env:PATH}",
    "${system:user.home}",
    "${spark.sql.variable.substitute}",
    "${spark.databricks.delta.commitInfo.userMetadata}",
    "$${env:PATH}} ${",
    "\\u0024{env:PATH} \\${env:PATH}",
    "{} {0} {rows} {names} {{x}} {",
    "%s %(x)d %n %",
    "setting.quotas gold.queue_history",
    "$(id) `id` $PATH",
)
QUOTED = (
    "it's \\ one",
    "\\' OR TRUE --",
    "' OR ''='",
    '" OR ""="',
    "`; DROP TABLE x; --",
    "a /* b */ -- c",
    "\\",
    "\\\\'\\\"\\n\\0",
    "X'00' r'x' :name ? ; NULL",
)
CONTROLS = (
    "line\r\nend\ttab\n",
    "a\x00b",
    "\x1b]0;owned\x07\x9b2J",
    "\u2028\u2029\u0085\ufeff\ufffd",
    "e\u0301\u0301\u0301 \U0001f600 \u05d0\u202b",
    "  blank ",
)
TEXTS = (*MARKUP, *REPLACED, *QUOTED, *CONTROLS)
"""All of them that are UTF-8 and short."""

LONG = "long ${env:PATH} ' " * 1000

NOT_UTF8 = ("\ud800", "a\udcffb")
"""Lone surrogates: what JSON can say and no table holds, and what a byte that is not UTF-8 is in a file's name."""

FILE_NAME = "hostile ${env:PATH} {x} [y] *? 'q' \"d\" `b` \\ %20 \u202e \n \udcff"
