"""Benchmarks of the reader, the decoders and the pipeline, compared with tshark, impacket and Delta.

They use helpers of the tests: peers, stories, and the decoders of one value, to which the column decoders are compared.
"""

import sys
from pathlib import Path

TEST_FOLDERS = tuple(str(Path(__file__).parents[1] / folder) for folder in ("tests", "tests/support"))
"""Where these modules are, as pytest has them."""
sys.path += [folder for folder in TEST_FOLDERS if folder not in sys.path]
