"""Commands: each job is a module that runs as ``msmq JOB`` or under ``spark-submit``; the others are shared by jobs."""
