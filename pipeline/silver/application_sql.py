"""SQL of what applications say in the headers of a message, over rows of silver.messages. For Spark and DuckDB."""

from __future__ import annotations

from typing import Final

IS_FAILED_SQL: Final = "(failed_queue IS NOT NULL OR exception_type IS NOT NULL OR exception_message IS NOT NULL)"
"""Whether a message is one that an endpoint could not process, whatever its queue is called."""

FAILED_ENDPOINT_SQL: Final = "coalesce(processing_endpoint, failed_queue)"
"""The endpoint that could not process a message, else the queue that it reads."""

_FIRST_TYPE: Final = "try_element_at(sent_types, 1)"
MESSAGE_TYPE_SQL: Final = f"""CASE WHEN {_FIRST_TYPE} LIKE '%[%' THEN {_FIRST_TYPE}
  WHEN {_FIRST_TYPE} IS NOT NULL THEN split_part({_FIRST_TYPE}, ',', 1)
  WHEN body_format IN ('xml', 'soap', 'nrbf', 'nbfs', 'nbfse', 'mtom') THEN body_root END"""
"""The first type of a message, without its assembly unless it is generic; else the root of a body that has one."""
