"""Write the documentation page of the targets of a move: what each offers and limits, and how verdicts are made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from pipeline.reports.targets.facts import FACTS, UNKNOWN, FactKind
from pipeline.reports.targets.requirements import REQUIREMENTS
from pipeline.reports.targets.target_file import DocumentedValue, MoveTarget, bundled_targets
from pipeline.reports.targets.verdicts import Fit

HEAD = """\
# Targets

Made by `make targets-doc` from `conf/targets`; change it there. This is what products that queues may move to offer and
limit, as their documentation says, and how `msmq report_estate` compares it with what was seen of each queue.

**No advice.** A verdict compares what was captured with what a page says. It knows nothing of costs, of how an
application is written, and of what was not captured. Read the page that is linked before you decide, because pages
change: "as of" is the date that the page bore, "checked" the day on which a copy of it was read. What a page says is
told in our own words.

## Verdicts

| Verdict | Means |
| --- | --- |
"""
VERDICTS = {
    Fit.FITS: "nothing was seen that the target does not offer by default",
    Fit.CHANGE: "the target offers it in another way, or only when it is configured: what to change is said",
    Fit.DOES_NOT_FIT: "over a limit, or not offered, and the file of the target names no other way",
    Fit.NOT_SEEN: "the property was not seen in the time that was asked for; this never means that it is not used",
    Fit.UNKNOWN: "it was seen, but the file of the target has no page that says what the target offers",
}
BELOW_VERDICTS = """
The verdict on a queue is the worst of its properties; `not seen` and `no verdict` count only where there is no other.
A queue of which nothing was seen has the verdict `not seen`.

**Sizes** are those of the largest whole message that was seen: body, properties and headers. They are compared as they
are, and once more grown by 4/3, because a text encoding such as base64 makes 4 bytes of 3. Where only the encoded size
is over the limit, the change is not to encode. MB and KB are 1,000,000 and 1,000 bytes, MiB and KiB 1,048,576 and
1,024.

**Time to live.** A message without one needs a target that keeps messages without a limit.

**Rates** are those of the busiest minute, by what was sent, divided by 60.

## What is compared

| Property of a queue | Fact on a target | What it says |
| --- | --- | --- |
"""
OWN = """
## Your own targets

`msmq report_estate --targets FILE` reads files of the same form, in place of those that are shipped.

```yaml
product: My broker
sources:
  manual:
    address: https://example.com/manual
    as_of: 2026-01-31      # the date that the page bears; left out if it has none
    checked: 2026-02-01    # when you compared what is said here with it
facts:                     # of all targets of the product
  order: {value: yes, source: manual, says: Each queue keeps order.}
targets:
  cluster:
    message_bytes:
      value: 2 MiB
      source: manual
      says: At most 2 MiB.
      change: Keep large bodies elsewhere.        # beyond the limit; without it, such a queue does not fit
      default: {value: 256 KiB, source: manual, says: 256 KiB unless configured.}
```

A fact without a source is unknown, whatever its value, and no verdict rests on it; so is one that the file does not
have. Other names than those above are an error, which names file and line and says what is allowed.

A file has at most 64 KiB, 50 sources and 10 targets, and all files together have 40 targets; names have up to 60
characters, texts up to 500, in one line. Addresses begin with `https://`. YAML's aliases are refused.

| Kind of value | Written as |
| --- | --- |
"""
ROWS = """
| Fact | Target | Value | As of | What the page says | Change |
| --- | --- | --- | --- | --- | --- |
"""
ALL_TARGETS = "all"


def page() -> str:
    """Return the page."""
    verdicts = "".join(f"| {verdict} | {text} |\n" for verdict, text in VERDICTS.items())
    compared = "".join(f"| {each.title} | `{each.fact}` | {FACTS[each.fact].about} |\n" for each in REQUIREMENTS)
    kinds = "".join(f"| {_kind_name(kind)} | {kind.expected} |\n" for kind in FactKind)
    products = groupby(bundled_targets(), lambda target: target.name.partition(", ")[0])
    sections = "".join(f"\n## {product}\n{ROWS}{''.join(_rows(list(targets)))}" for product, targets in products)
    return f"{HEAD}{verdicts}{BELOW_VERDICTS}{compared}{OWN}{kinds}{sections}"


def _kind_name(kind: FactKind) -> str:
    return f"{kind.value}: {', '.join(f'`{name}`' for name, fact in FACTS.items() if fact.kind is kind)}"


def _rows(targets: list[MoveTarget]) -> Iterator[str]:
    """Yield the rows of a product's facts; one for all of its targets where they have the same."""
    for name, fact in FACTS.items():
        found = [(target.name.partition(", ")[2], target.facts.get(name)) for target in targets]
        if all(each == found[0][1] for _, each in found):
            found = [(ALL_TARGETS if len(targets) > 1 else found[0][0], found[0][1])]
        for target, each in found:
            if each is None:
                yield f"| {fact.about} | {target} | {UNKNOWN} | | | |\n"
                continue
            yield _row(fact.about, target, each.limit)
            if each.default is not None:
                yield _row(f"{fact.about}: default", target, each.default)


def _row(about: str, target: str, stated: DocumentedValue) -> str:
    source = stated.source
    value = stated.text if source is None else f"[{stated.text}]({source.address})"
    as_of = "" if source is None else f"{source.as_of or 'no date'}; checked {source.checked}"
    return f"| {about} | {target} | {value} | {as_of} | {stated.says or ''} | {stated.change or ''} |\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
