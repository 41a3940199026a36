"""Commands: each job is a module that runs as ``msmq JOB`` or under ``spark-submit``; the others are shared by jobs."""

__version__ = "0.1.0"  # of all four packages; pyproject.toml reads it here
