"""Write the documentation page of the tables from their declarations in schemas/."""

from __future__ import annotations

import sys
from pathlib import Path

from schemas.catalog import EVERY

HEAD = """\
# Tables

Made by `make tables-doc` from `schemas/`; change it there. The comments stand in the Delta schema too
(`DESCRIBE TABLE EXTENDED`). Times are UTC with microseconds; numbers are as sent; what is not known is null.

"""


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(table.markdown() for table in EVERY)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
