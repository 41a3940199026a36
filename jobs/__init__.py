"""Entry points for ``python -m jobs.<job>`` and ``spark-submit``; a module here is a verb."""
